import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.core.rng import Stream, step_generator
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


def test_only_tied_groups_are_replaced_and_only_by_groups_with_a_signal():
    first = [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [NAN, NAN], [0.5, 0.5]]
    draws = Draws(
        [[9.0, 9.5], [0.0, 1.0], [1.0, 1.0], [0.2, NAN], [0.5, 0.5]],  # helps row 1; row 3 has a lone score
        [[9.0, 9.5], [9.0, 9.5], [0.3, 0.4], [0.0, 0.1], [NAN, NAN]],  # helps rows 2 and 3
        [[9.0, 9.5], [9.0, 9.5], [9.0, 9.5], [9.0, 9.5], [0.7, 0.7]],  # helps none
    )
    rollouts, rewards = numbered(first, 0)
    got, got_rewards, report = resample_tied(rollouts, rewards, draw=draws, max_retries=3)
    assert report == ResampleReport(tied_before=4, tied_after=1, attempts=3)
    assert draws.calls == [1, 2, 3]
    assert got_rewards.tolist() == [[0.0, 1.0], [0.0, 1.0], [0.3, 0.4], [0.0, 0.1], [0.5, 0.5]]
    sources = [0, 101, 202, 203, 4]
    assert got.actions[:, 0, 0].tolist() == sources
    assert torch.equal(got.actions, torch.tensor(sources)[:, None, None].expand(5, 2, 2))
    assert torch.equal(got.logprobs, -got.actions.double())
    draw_of = got.actions // 100
    assert torch.equal(got.is_valid, got.actions % 2 == draw_of % 2)


@dataclass(frozen=True)
class Drawings(Rollouts):
    states: torch.Tensor  # [P, G, 3]
    notes: torch.Tensor | None = None


def test_a_replaced_group_keeps_nothing_of_the_old_one():
    def drawings(rewards, number):
        rollouts, rewards = numbered(rewards, number)
        parts = (rollouts.actions, rollouts.logprobs, rollouts.is_valid)
        return Drawings(*parts, states=rollouts.actions[..., :1].expand(-1, -1, 3)), rewards

    first, rewards = drawings([[0.0, 1.0], [1.0, 1.0]], 0)
    got, _, _ = resample_tied(first, rewards, draw=lambda i: drawings([[0.0, 1.0]] * 2, i), max_retries=1)
    assert got.states.tolist() == [[[0] * 3] * 2, [[101] * 3] * 2]
    assert got.notes is None


def test_inputs_are_left_as_they_are():
    rollouts, rewards = numbered([[1.0, 1.0]], 0)
    before = [x.clone() for x in vars(rollouts).values()]
    resample_tied(rollouts, rewards, draw=Draws([[0.0, 1.0]]), max_retries=1)
    assert rewards.tolist() == [[1.0, 1.0]]
    assert all(torch.equal(a, b) for a, b in zip(before, vars(rollouts).values(), strict=True))


def test_drawing_stops_as_soon_as_no_group_is_tied():
    draws = Draws([[0.0, 1.0], [0.0, 0.0]], [[3.0, 3.0], [0.0, 2.0]], [[9.0, 9.0], [9.0, 9.0]])
    _, rewards, report = resample_tied(*numbered([[1.0, 1.0], [0.0, 0.0]], 0), draw=draws, max_retries=3)
    assert report == ResampleReport(2, 0, 2)
    assert draws.calls == [1, 2]
    assert rewards.tolist() == [[0.0, 1.0], [0.0, 2.0]]


@pytest.mark.parametrize(
    ("first", "retries", "tied"),
    [([[0.0, 1.0]], 5, 0), ([[1.0, 1.0], [0.0, 1.0]], 0, 1)],
    ids=["nothing tied", "no retries"],
)
def test_nothing_is_drawn_where_nothing_is_to_be_gained(first, retries, tied):
    draws = Draws()
    rollouts, rewards = numbered(first, 0)
    got, got_rewards, report = resample_tied(rollouts, rewards, draw=draws, max_retries=retries)
    assert report == ResampleReport(tied, tied, 0)
    assert draws.calls == []
    assert torch.equal(got.actions, rollouts.actions)
    assert torch.equal(got_rewards, rewards)


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
    needed = retries if None in firsts else max(taken)
    assert report == ResampleReport(sum(not teaches(row) for row in tables[0]), firsts.count(None), needed)


def test_a_resumed_run_draws_the_same():
    """The generator of an attempt is a function of (seed, step, attempt): nothing is kept between steps."""

    def collect(step):
        def draw(attempt):
            generator = step_generator(3, step, attempt, stream=Stream.RETRIES)
            actions = torch.randint(0, 2, (6, 2, 1), generator=generator)
            return Rollouts(actions, torch.zeros(6, 2, 1), torch.ones(6, 2, 1, dtype=torch.bool)), actions[..., 0].double()

        return resample_tied(*draw(0), draw=draw, max_retries=2)

    unbroken = [collect(step) for step in range(6)]
    resumed = [collect(step) for step in range(3, 6)]
    assert max(report.attempts for _, _, report in unbroken[3:]) > 0
    for (a, rewards_a, report_a), (b, rewards_b, report_b) in zip(unbroken[3:], resumed, strict=True):
        assert torch.equal(a.actions, b.actions)
        assert torch.equal(rewards_a, rewards_b)
        assert report_a == report_b


def test_the_tie_rule_is_that_of_the_advantages():
    rewards = torch.tensor([[1.0, 1.0 + 1e-9], [1.0, 1.001], [NAN, NAN], [0.3, NAN], [0.0, 1.0]], dtype=torch.float64)
    assert find_silent(rewards).tolist() == [True, False, True, True, False]
    assert find_silent(rewards, 0.01).tolist() == [True, True, True, True, False]
    _, _, report = resample_tied(*numbered([[1.0, 1.001]], 0), draw=Draws(), max_retries=0, tie_tolerance=0.01)
    assert report.tied_before == 1


@pytest.mark.parametrize("table", [[[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]], [[0.0, 1.0]]])
def test_a_draw_of_another_shape_is_refused(table):
    with pytest.raises(
        ValueError, match=r"must have the shapes of the first, \[\[2, 2, 2\], \[2, 2\]\], got .* in attempt 1; draw the whole"
    ):
        resample_tied(*numbered([[1.0, 1.0], [0.0, 1.0]], 0), draw=Draws(table), max_retries=1)


def test_negative_retries_are_refused():
    with pytest.raises(ValueError, match="max_retries must be at least 0, got -1"):
        resample_tied(*numbered([[1.0, 1.0]], 0), draw=Draws(), max_retries=-1)
