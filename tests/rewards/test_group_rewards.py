from concurrent.futures import Future

import numpy as np
import pytest

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


def test_values_go_back_to_their_places_and_what_failed_is_left_out_pays_or_stops():
    rewards = pending().result()
    assert rewards.components["part"].nan_to_num(-9).tolist() == [[1, -9, -9], [3, 4, -9]]
    assert rewards.is_failed["part"].tolist() == [[False, False, True], [False, False, False]]
    cause = "mine:part on the text 'c': it raised"
    assert (rewards.failures, rewards.causes, dict(rewards.weights)) == ({"part": 1}, {"part": cause}, {"part": 2.0})
    assert pending("penalty", -1.5).result().components["part"].nan_to_num(-9).tolist() == [[1, -9, -1.5], [3, 4, -9]]
    with pytest.raises(RewardFailedError, match=f"every text under rule 'stop', got no value from {cause}"):
        pending("stop").result()
    assert [pending(is_done=is_done).done() for is_done in (False, True)] == [False, True]
    everything = Subjects(GROUPS, "text")
    assert (everything.measured.tolist(), tuple(everything.shape)) == (list(range(6)), (2, 3))


@pytest.mark.parametrize("groups", [[], [[]], [["a"], ["b", "c"]]])
def test_groups_have_one_size(groups):
    with pytest.raises(ValueError, match="samples must be groups of one size, got sizes"):
        check_groups(groups, name="samples")
