from concurrent.futures import Future

import numpy as np
import pytest
import torch

from grpo_pipeline.rewards.params import FailureParams
from grpo_pipeline.rewards.pool import CollectedRewards, PendingRewards, RewardFailedError, Subjects, check_groups

GROUPS = [["a", "", "c"], ["d", "e", ""]]
PLACES = np.array([0, 2, 3, 4])
VALUES = np.array([1.0, np.nan, 3.0, 4.0])


def pending(rule="exclude", penalty=None, *, is_done=True):
    future = Future()
    if is_done:
        future.set_result(CollectedRewards(VALUES, (None, "it raised", None, None), "mine:part"))
    params = FailureParams(rule=rule, penalty=penalty)
    return PendingRewards({"part": 2.0}, params, futures={"part": future}, subjects=Subjects(GROUPS, "text", PLACES))


def test_values_go_back_to_their_places():
    rewards = pending().result()
    assert rewards.components["part"].nan_to_num(-9).tolist() == [[1, -9, -9], [3, 4, -9]]
    assert rewards.is_failed["part"].tolist() == [[False, False, True], [False, False, False]]
    assert (rewards.failures, rewards.causes, dict(rewards.weights)) == (
        {"part": 1},
        {"part": "mine:part on the text 'c': it raised"},
        {"part": 2.0},
    )


def test_a_penalty_is_paid_by_what_failed_and_by_nobody_else():
    assert pending("penalty", -1.5).result().components["part"].nan_to_num(-9).tolist() == [[1, -9, -1.5], [3, 4, -9]]


def test_the_sample_that_stops_the_run_is_named():
    with pytest.raises(
        RewardFailedError, match="every text under rule 'stop', got no value from mine:part on the text 'c': it raised"
    ):
        pending("stop").result()


def test_nothing_is_waited_for_before_the_result():
    assert not pending(is_done=False).done()
    assert pending().done()


def test_all_are_measured_unless_places_say_otherwise():
    assert Subjects(GROUPS, "text").measured.tolist() == list(range(6))
    assert torch.tensor(Subjects(GROUPS, "text").shape).tolist() == [2, 3]


@pytest.mark.parametrize("groups", [[], [[]], [["a"], ["b", "c"]]])
def test_groups_have_one_size(groups):
    with pytest.raises(ValueError, match="samples must be groups of one size, got sizes"):
        check_groups(groups, name="samples")
