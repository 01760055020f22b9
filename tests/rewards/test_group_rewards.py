from concurrent.futures import Future

import numpy as np
import pytest

from grpo_pipeline.rewards.group_rewards import PendingRewards, RewardFailedError, Subjects, check_groups
from grpo_pipeline.rewards.measure import Measure
from grpo_pipeline.rewards.pool import CollectedRewards
from grpo_pipeline.rewards.rehearsal import try_rewards

GROUPS = [["a", "", "c"], ["d", "e", ""]]
PLACES = np.array([0, 2, 3, 4])
VALUES = np.array([1.0, np.nan, 3.0, 4.0])


def pending(failure="exclude", *, is_done=True):
    future = Future()
    if is_done:
        future.set_result(CollectedRewards(VALUES, (None, "it raised", None, None), "mine:part"))
    return PendingRewards({"part": 2.0}, failure, futures={"part": future}, subjects=Subjects(GROUPS, "text", PLACES))


def test_values_go_back_to_their_places_and_what_failed_is_left_out_pays_or_stops():
    rewards = pending().result()
    assert rewards.components["part"].nan_to_num(-9).tolist() == [[1, -9, -9], [3, 4, -9]]
    assert rewards.is_failed["part"].tolist() == [[False, False, True], [False, False, False]]
    cause = "mine:part on the text 'c': it raised"
    assert (rewards.failures, rewards.causes, dict(rewards.weights)) == ({"part": 1}, {"part": cause}, {"part": 2.0})
    assert pending(-1.5).result().components["part"].nan_to_num(-9).tolist() == [[1, -9, -1.5], [3, 4, -9]]
    with pytest.raises(RewardFailedError, match=f"every text with failure = stop, got no value from {cause}"):
        pending("stop").result()
    assert [pending(is_done=is_done).done() for is_done in (False, True)] == [False, True]
    everything = Subjects(GROUPS, "text")
    assert (everything.measured.tolist(), tuple(everything.shape)) == (list(range(6)), (2, 3))


def collected(*causes):
    future = Future()
    values = np.array([np.nan if cause else 1.0 for cause in causes])
    future.set_result(CollectedRewards(values, causes, "mine:part"))
    return future


def test_the_first_failure_of_each_part_is_told_with_its_own_text():
    futures = {
        "one": collected(None, "late", "lost", None),
        "two": collected("early", None, None, "last"),
        "three": collected(*[None] * 4),
    }
    weights = dict.fromkeys(futures, 1.0)
    found = PendingRewards(weights, "exclude", futures=futures, subjects=Subjects(GROUPS, "text", PLACES))
    # The four that are measured are a, c, d and e.
    assert found.result().causes == {"one": "mine:part on the text 'c': late", "two": "mine:part on the text 'a': early"}
    assert found.result().failures == {"one": 2, "two": 2, "three": 0}


def test_rewards_are_done_where_every_part_is():
    futures = {"one": collected(*[None] * 4), "two": Future()}
    waiting = PendingRewards(dict.fromkeys(futures, 1.0), "exclude", futures=futures, subjects=Subjects(GROUPS, "text", PLACES))
    assert not waiting.done()
    futures["two"].set_result(futures["one"].result())
    assert waiting.done()


@pytest.mark.parametrize(("causes", "fails"), [((None, "x"), False), (("x", "x"), True), ((None, None), False), ((), False)])
def test_a_part_that_measures_no_sample_at_all_is_refused_before_a_run(causes, fails):
    class Pool:
        def submit(self, *given):
            asked.append(given)
            return collected(*causes)

    asked, measure = [], Measure("mine:part")
    given = {
        "subjects": ["a", "b"][: len(causes)],
        "references": [["x"], ["y"]][: len(causes)],
        "prompts": ["p", "q"],
        "cells": ["{}", "{}"],
    }
    try:
        try_rewards({"own": measure}, Pool(), task="tiny", **given)
    except RewardFailedError:
        assert fails
    else:
        assert not fails
    assert asked == [(measure, given["subjects"], given["references"], ["p", "q"], ["{}", "{}"])]


@pytest.mark.parametrize("groups", [[], [[]], [["a"], ["b", "c"]]])
def test_groups_have_one_size(groups):
    with pytest.raises(ValueError, match="samples must be groups of one size, got sizes"):
        check_groups(groups, name="samples")
