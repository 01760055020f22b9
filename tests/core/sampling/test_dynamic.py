import copy
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.core.sampling.dynamic import ResampleReport, find_silent, resample_tied
from grpo_pipeline.core.types import Rollouts

NAN = math.nan


def numbered(rewards, number):
    """Rollouts of which every entry says from which draw and group it is: 100 * number + p."""
    rewards = torch.tensor(rewards, dtype=torch.float64)
    place = (100 * number + torch.arange(len(rewards)))[:, None, None].expand(-1, rewards.shape[1], 2)
    return Rollouts(place.clone(), -place.double(), place % 2 == number % 2), rewards


class Draws:
    """The draws of a test: attempt i returns the i-th table of rewards."""

    def __init__(self, *tables):
        self.tables, self.calls = tables, []

    def __call__(self, attempt):
        self.calls.append(attempt)
        return numbered(self.tables[attempt - 1], attempt)


@dataclass(frozen=True)
class Drawings(Rollouts):
    states: torch.Tensor  # [P, G, 3]
    notes: torch.Tensor | None = None


def test_a_replaced_group_keeps_nothing_of_the_old_one_and_changes_no_input():
    def drawings(rewards, number):
        rollouts, rewards = numbered(rewards, number)
        return Drawings(**vars(rollouts), states=rollouts.actions[..., :1].expand(-1, -1, 3)), rewards

    first, rewards = drawings([[0.0, 1.0], [1.0, 1.0]], 0)
    before = copy.deepcopy((first, rewards))
    got, _, _ = resample_tied(first, rewards, draw=lambda i: drawings([[0.0, 1.0]] * 2, i), max_retries=1)
    assert got.states.tolist() == [[[0] * 3] * 2, [[101] * 3] * 2]
    assert got.notes is None
    for was, now in zip((*vars(before[0]).values(), before[1]), (*vars(first).values(), rewards), strict=True):
        assert was is now is None or torch.equal(was, now)


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(st.lists(st.sampled_from([0.0, 1.0, NAN]), min_size=2, max_size=2), min_size=3, max_size=3),
        min_size=4,
        max_size=4,
    ),
    st.integers(0, 3),
)
def test_each_group_is_the_first_of_its_draws_with_a_signal(tables, retries):
    tables = [torch.tensor(table, dtype=torch.float64) for table in tables]
    draws = Draws(*[table.tolist() for table in tables[1:]])
    got, rewards, report = resample_tied(*numbered(tables[0].tolist(), 0), draw=draws, max_retries=retries)

    def teaches(row):
        return {0.0, 1.0} <= set(row.tolist())

    firsts = [next((i for i in range(retries + 1) if teaches(tables[i][p])), None) for p in range(3)]
    taken = [0 if first is None else first for first in firsts]
    assert (got.actions[:, 0, 0] // 100).tolist() == taken
    for p, i in enumerate(taken):
        assert torch.equal(rewards[p].nan_to_num(-7.0), tables[i][p].nan_to_num(-7.0))
    # Everything of a group is of one draw.
    assert torch.equal(got.actions, got.actions[:, :1, :1].expand(3, 2, 2))
    assert torch.equal(got.logprobs, -got.actions.double())
    assert torch.equal(got.is_valid, got.actions % 2 == got.actions // 100 % 2)
    needed = retries if None in firsts else max(taken)
    assert draws.calls == list(range(1, needed + 1))
    assert report == ResampleReport(sum(not teaches(row) for row in tables[0]), firsts.count(None), needed)


def test_the_tie_rule_is_that_of_the_advantages():
    rewards = torch.tensor([[1.0, 1.0 + 1e-9], [1.0, 1.001], [NAN, NAN], [0.3, NAN], [0.0, 1.0]], dtype=torch.float64)
    assert find_silent(rewards).tolist() == [True, False, True, True, False]
    assert find_silent(rewards, 0.01).tolist() == [True, True, True, True, False]
    _, _, report = resample_tied(*numbered([[1.0, 1.001]], 0), draw=Draws(), max_retries=0, tie_tolerance=0.01)
    assert report.tied_before == 1
    # What is drawn again is judged as the first draw was: 1.001 ties here, too.
    draws = Draws([[1.0, 1.001]], [[0.0, 1.0]])
    _, rewards, report = resample_tied(*numbered([[1.0, 1.0]], 0), draw=draws, max_retries=2, tie_tolerance=0.01)
    assert (rewards.tolist(), report) == ([[0.0, 1.0]], ResampleReport(1, 0, 2))
    with pytest.raises(ValueError, match="max_retries must be at least 0, got -1"):
        resample_tied(*numbered([[1.0, 1.0]], 0), draw=Draws(), max_retries=-1)


@pytest.mark.parametrize("table", [[[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]], [[0.0, 1.0]]])
def test_a_draw_of_another_shape_is_refused(table):
    with pytest.raises(
        ValueError, match=r"must have the shapes of the first, \[\[2, 2, 2\], \[2, 2\]\], got .* in attempt 1; draw the whole"
    ):
        resample_tied(*numbered([[1.0, 1.0], [0.0, 1.0]], 0), draw=Draws(table), max_retries=1)
