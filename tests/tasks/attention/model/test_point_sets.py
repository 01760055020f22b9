import math
from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare
from tiny_attention import model_params
from torch import Tensor

from grpo_pipeline.core.policy_gradient.kl import categorical_kl
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.model.baselines import lesion_share, point_coordinates, points_used
from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.model.point_sets import (
    SetLogits,
    chosen_points,
    draw_sets,
    factor_logprobs,
    likeliest_sets,
    score_sets,
    set_entropy,
)
from grpo_pipeline.tasks.attention.rewards.points import points_component

F64 = torch.float64
V = 4
CELLS = torch.tensor([[0.3, -1.2, 1.5, 0.0]], dtype=F64)
ALL = torch.ones(1, V, dtype=torch.bool)
CASES = [(2, 1), (3, 1), (3, 2)]


def params(points: int = 2, min_points: int | None = 1, **changes: object) -> ModelParams:
    stop = None if min_points is None else {"min_points": min_points}
    return model_params(points=points, policy={"stop": stop, **changes})


def policy(points: int, min_points: int) -> SetLogits:
    return SetLogits(CELLS, torch.tensor([[-0.4, 0.7]], dtype=F64)[:, : points - min_points])


def every_set(points: int, min_points: int) -> tuple[Tensor, Tensor]:
    """Return every possible row of actions and its valid decisions: cells, one stop, padding."""
    rows = [
        [*chosen, *[V] * (points - count)] for count in range(min_points, points + 1) for chosen in permutations(range(V), count)
    ]
    actions = torch.tensor([rows])
    taken = (actions < V).sum(-1, keepdim=True)
    return actions, torch.arange(points) <= taken


def naive_logprob(logits: SetLogits, row: list[int], min_points: int, temperature: float) -> float:
    """Decide one by one: stop with the odds exp(h / T) against the share of the map's mass that is left, or take a cell."""
    mass = {v: math.exp(z / temperature) for v, z in enumerate(logits.cells[0].tolist())}
    whole, total = sum(mass.values()), 0.0
    for i, action in enumerate(row):
        odds = 0.0
        if i >= min_points:
            odds = math.exp(float(logits.stops[0, i - min_points]) / temperature) / (sum(mass.values()) / whole)
        if action == V:
            return total + math.log(odds / (1 + odds))
        total += math.log(1 / (1 + odds)) + math.log(mass[action] / sum(mass.values()))
        del mass[action]
    return total


@pytest.mark.parametrize(("points", "min_points"), CASES)
def test_every_set_agrees_with_a_naive_loop_and_all_sum_to_one(points: int, min_points: int):
    (actions, is_valid), logits = every_set(points, min_points), policy(points, min_points)
    for temperature in (1.0, 0.6):
        got = score_sets(params(points, min_points), logits, actions, is_valid, temperature=temperature, is_allowed=ALL)
        want = [naive_logprob(logits, row, min_points, temperature) for row in actions[0].tolist()]
        torch.testing.assert_close(got.sum(-1)[0], torch.tensor(want, dtype=F64), atol=1e-12, rtol=0)
        assert float(got.sum(-1).exp().sum()) == pytest.approx(1.0, abs=1e-12)
        assert torch.count_nonzero(got[~is_valid]) == 0
    assert torch.equal(SetLogits.unpacked(logits.packed(), V).stops, logits.stops)
    assert torch.equal(SetLogits.unpacked(logits.packed(), V).cells, logits.cells)
    assert SetLogits.unpacked(SetLogits(CELLS).packed(), V).stops is None

    def score(cells: Tensor, stops: Tensor) -> Tensor:
        return score_sets(params(points, min_points), SetLogits(cells, stops), actions, is_valid, temperature=0.7, is_allowed=ALL)

    assert torch.autograd.gradcheck(score, (CELLS.clone().requires_grad_(), logits.stops.clone().requires_grad_()))


@pytest.mark.parametrize(("points", "min_points"), CASES)
def test_drawn_sets_follow_the_enumerated_distribution(points: int, min_points: int):
    n, model, logits = 30_000, params(points, min_points), policy(points, min_points)
    generator = torch.Generator().manual_seed(5)
    drawn = draw_sets(model, logits, ALL, n, temperature=0.8, generator=generator)
    actions, is_valid = every_set(points, min_points)
    base = (V + 1) ** torch.arange(points)
    where = {int(code): i for i, code in enumerate((actions[0] * base).sum(-1))}
    index = torch.tensor([where[int(code)] for code in (drawn.actions[0] * base).sum(-1)])
    exact = score_sets(model, logits, actions, is_valid, temperature=0.8, is_allowed=ALL).sum(-1)[0]
    torch.testing.assert_close(drawn.logprobs.sum(-1)[0], exact[index], atol=1e-10, rtol=0)
    assert torch.equal(drawn.is_valid[0], is_valid[0][index])
    counts = torch.bincount(index, minlength=len(exact))
    # A right sampler falls below this bar once in 10 000 seeds (p-values of 300 seeds are uniform); a wrong one is at 1e-6.
    assert chisquare(counts.numpy(), (n * exact.exp()).numpy()).pvalue > 1e-4
    warmer = score_sets(model, logits, actions, is_valid, temperature=1.0, is_allowed=ALL).sum(-1)[0].exp()
    assert chisquare(counts.numpy(), (n * warmer).numpy()).pvalue < 1e-6  # the test has power
    drawn = draw_sets(params(1, None), SetLogits(CELLS), ALL, n, temperature=0.5, generator=generator)  # without a stop
    expected = n * (CELLS[0] / 0.5).softmax(0)
    assert chisquare(torch.bincount(drawn.actions.flatten(), minlength=V).numpy(), expected.numpy()).pvalue > 1e-4


def test_cells_outside_the_region_change_no_score():
    allowed = torch.tensor([[True, True, True, False]])
    stops, sets = torch.tensor([[-0.4, 0.7]], dtype=F64), torch.tensor([[[2, V, V], [0, 1, V], [1, 0, 2]]])
    is_valid = torch.tensor([[[True, True, False], [True, True, True], [True, True, True]]])
    a, b = (
        score_sets(params(3), SetLogits(cells, stops), sets, is_valid, temperature=0.7, is_allowed=allowed)
        for cells in (CELLS, CELLS.masked_fill(~allowed, 9.0))
    )
    torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_what_stands_after_a_stop_is_not_read():
    actions, is_valid = every_set(3, 1)
    logits = SetLogits(CELLS.clone().requires_grad_(), torch.tensor([[-0.4, 0.7]], dtype=F64, requires_grad=True))
    garbage = actions.masked_scatter(~is_valid, torch.randint(0, V, ((~is_valid).sum(),), generator=torch.Generator()))
    assert not torch.equal(garbage, actions)
    scored = [score_sets(params(3), logits, a, is_valid, temperature=0.7, is_allowed=ALL) for a in (actions, garbage)]
    assert torch.equal(*scored)
    gradients = [torch.autograd.grad(s.sum(), (logits.cells, logits.stops)) for s in scored]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    clean, placed = (chosen_points(Rollouts(choice, scored[0], is_valid), V) for choice in (actions, garbage))
    assert torch.equal(clean.actions, placed.actions)
    assert torch.equal(clean.is_valid, placed.is_valid)
    assert torch.equal(placed.is_valid.sum(-1), (actions < V).sum(-1))


def joint(logits: SetLogits, cells: int, temperature: float = 1.0) -> list[float]:
    """Of every combination of first point, stop after one point and stop after two, with the whole map left."""
    p = (logits.cells[0][:cells] / temperature).softmax(0).tolist()
    s, t = (logits.stops[0] / temperature).sigmoid().tolist()
    return [x * (s if i else 1 - s) * (t if j else 1 - t) for x in p for i in (0, 1) for j in (0, 1)]


def test_entropy_and_exact_kl_are_those_of_the_first_point_and_the_stops():
    a, b = policy(3, 1), SetLogits(CELLS.flip(1), torch.tensor([[1.0, -0.2]], dtype=F64))
    assert sum(joint(a, V, 0.7)) == pytest.approx(1.0)
    want = -sum(x * math.log(x) for x in joint(a, V, 0.7))
    assert float(set_entropy(a, ALL, temperature=0.7)) == pytest.approx(want, abs=1e-12)
    factors = factor_logprobs(a, ALL, temperature=0.7)[0]
    assert float(-(factors.exp() * factors).sum()) == pytest.approx(want, abs=1e-12)
    allowed = torch.tensor([[True, True, True, False]])
    want = sum(x * math.log(x / y) for x, y in zip(joint(a, 3), joint(b, 3), strict=True))
    log_p, log_q = (factor_logprobs(x, allowed, temperature=1.0) for x in (a, b))
    assert float(categorical_kl(log_p, log_q, log_q > -torch.inf)) == pytest.approx(want, abs=1e-12)


def test_the_likeliest_set_stops_where_that_is_likelier():
    # The map is .19 .04 .63 .14: after cell 2 the share left is .37, after cells 2 and 0 it is .18.
    for h, expected in (
        (-3.0, [2, 0, 3]),  # odds .05 / .37 = .13 and .05 / .18 = .27
        (-1.0, [2, 0, V]),  # odds .37 / .37 = .99 and .37 / .18 = 2.0
        (-0.9, [2, V, V]),  # odds .41 / .37 = 1.1
    ):
        logits = SetLogits(CELLS, torch.tensor([[h, h]], dtype=F64))
        assert likeliest_sets(params(3), logits, ALL)[0, 0].tolist() == expected


def test_points_cost_their_number_and_those_that_were_not_placed_count_nowhere():
    actions = torch.tensor([[[1, 2, 0], [3, V, V], [0, 1, V], [0, 1, 2]]])  # four samples of at most three points
    rollouts = Rollouts(actions, torch.zeros(1, 4, 3), torch.ones(1, 4, 3, dtype=torch.bool))
    torch.testing.assert_close(points_component(chosen_points(rollouts, V)), torch.tensor([[-1.0, -1 / 3, -2 / 3, -1.0]]))
    empty = Rollouts(*(torch.empty(1, 2, 0, dtype=t) for t in (torch.int64, torch.float32, torch.bool)))
    assert points_component(chosen_points(empty, V)).tolist() == [[0.0, 0.0]]
    actions = actions[:, :2]  # what was not placed counts nowhere
    lesion = torch.tensor([[False, True, False, True]])
    assert lesion_share(actions, lesion).tolist() == [0.5]  # cells 1 and 3 of 1, 2, 0, 3
    assert points_used(actions, V).tolist() == [2.0]
    points = point_coordinates(Rollouts(actions, torch.zeros(1, 2, 3), torch.ones(1, 2, 3, dtype=torch.bool)), 2)
    assert points[0, 0].tolist() == [[0.75, 0.25], [0.25, 0.75], [0.25, 0.25]]
    assert points[0, 1, 0].tolist() == [0.75, 0.75]
    assert bool(points[0, 1, 1:].isnan().all())


def test_independent_likelihood_is_no_distribution_over_sets():
    sets = torch.tensor([list(permutations(range(V), 2))])
    is_valid = torch.ones_like(sets, dtype=torch.bool)

    def mass(likelihood: str) -> float:
        model = params(2, None, likelihood=likelihood)
        return float(score_sets(model, SetLogits(CELLS), sets, is_valid, temperature=1.0, is_allowed=ALL).sum(-1).exp().sum())

    assert mass("plackett_luce") == pytest.approx(1.0, abs=1e-12)
    assert mass("independent") < 0.6


def test_stops_are_no_points():
    actions = torch.tensor([[[1, 3, 0], [0, V, V]]])
    rollouts = Rollouts(actions, torch.zeros(1, 2, 3), torch.tensor([[[True, True, True], [True, True, False]]]))
    lesion = torch.tensor([[False, True, False, True]])
    assert lesion_share(actions, lesion).tolist() == [0.5]  # cells 1 and 3 of 1, 3, 0 and 0
    assert points_used(actions, V).tolist() == [2.0]
    placed = chosen_points(rollouts, V)
    assert placed.actions.tolist() == [[[1, 3, 0], [0, 0, 0]]]
    assert placed.is_valid.tolist() == [[[True, True, True], [True, False, False]]]
    assert point_coordinates(rollouts, 2)[0, 0].tolist() == [[0.75, 0.25], [0.75, 0.75], [0.25, 0.25]]
    assert point_coordinates(rollouts, 2)[0, 1].isnan().all(1).tolist() == [False, True, True]
    torch.testing.assert_close(points_component(placed), torch.tensor([[-1.0, -1 / 3]]))
