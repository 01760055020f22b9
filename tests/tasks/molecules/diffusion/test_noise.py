from decimal import Decimal, getcontext

import pytest
import torch
from scipy.stats import chisquare
from tiny_graphs import CLASSES, generator, graph_noise, noise_params, prompts, random_graphs, skewed_limit
from torch import Tensor

from grpo_pipeline.tasks.molecules.diffusion.noise import (
    Transition,
    cosine_schedule,
    count_classes,
    draw_entries,
    limits_of,
    marginal_limit,
    uniform_limit,
)
from grpo_pipeline.tasks.molecules.graphs.graphs import Components, entries_of, graphs_of


def test_a_corrupted_graph_is_a_graph() -> None:
    """Symmetric, nothing outside it (``graphs_of`` checks), and the components do not write into each other or into x0."""
    graphs, noise = random_graphs([5, 2, 1], 5), graph_noise()
    clean = entries_of(graphs)
    before = clean.each(torch.clone)
    wanted = prompts([5, 2, 1], 5)
    for t in (0, 3, 5):
        noisy = noise.corrupt(clean, torch.full((3,), t), wanted.masks, generator=generator(t))
        graphs_of(noisy, graphs.sizes)
        if t == 0:
            assert all(noisy.each(torch.equal, clean))
    assert all(clean.each(torch.equal, before))


def test_each_component_has_its_own_limit_and_schedule() -> None:
    noise = graph_noise()
    exponents = Components(1.0, 1.0, 1.5)
    for transition, k, exponent in zip(noise.transitions, CLASSES, exponents, strict=True):
        assert torch.equal(transition.limit, skewed_limit(k))
        assert torch.equal(transition.log_total_keep.exp(), cosine_schedule(5, exponent).total_keep.log().exp())
    start = noise.draw_start(prompts([4] * 3000, 4), generator=generator())
    for entries, k in zip(start, CLASSES, strict=True):
        counts = torch.bincount(entries.flatten(), minlength=k)
        assert chisquare(counts.numpy(), (skewed_limit(k) * entries.numel()).numpy()).pvalue > 1e-3


def test_classes_are_counted_without_padding_and_each_pair_once() -> None:
    graphs = random_graphs([3, 2], 5)
    counts = count_classes(graphs, CLASSES)
    assert [float(count.sum()) for count in counts] == [5.0, 5.0, 4.0]  # 3 + 2 nodes; 3 + 1 pairs
    bonds = [0.0] * CLASSES.bonds
    for row, size in ((0, 3), (1, 2)):
        for i in range(size):
            for j in range(i):
                bonds[int(graphs.bonds[row, i, j])] += 1
    assert counts.bonds.tolist() == bonds


def test_limits_are_uniform_or_those_of_the_data() -> None:
    graphs = random_graphs([5] * 20, 5)
    uniform = limits_of(noise_params(), graphs, CLASSES)
    assert [len(limit) for limit in uniform] == list(CLASSES)
    assert uniform.bonds.tolist() == [0.25] * 4
    marginal = limits_of(noise_params(limit="marginal"), graphs, CLASSES)
    assert torch.allclose(marginal.bonds, count_classes(graphs, CLASSES).bonds / 200)
    with pytest.raises(ValueError, match="bonds must be classes below 2, got 3"):
        limits_of(noise_params(limit="marginal"), graphs, Components(3, 2, 2))


def test_rows_have_noise_of_their_own() -> None:
    """The same distribution in every row, 30 entries each: equal rows would share their noise."""
    wanted = prompts([6] * 8, 6)
    start = graph_noise().draw_start(wanted, generator=generator())
    assert len({tuple(row) for row in start.bonds.tolist()}) == 8
    uniform = wanted.masks.each(lambda mask, k: torch.zeros(*mask.shape, k), CLASSES)
    drawn = draw_entries(uniform, wanted.masks, generator=generator())
    assert len({tuple(row) for row in drawn.bonds.tolist()}) == 8


def cosine(x: Decimal) -> Decimal:
    """Return cos(x) by its series, to 50 digits."""
    total, term = Decimal(0), Decimal(1)
    for k in range(1, 80):
        total += term
        term = -term * x * x / ((2 * k - 1) * (2 * k))
    return total


PI = Decimal("3.14159265358979323846264338327950288419716939937511")


def decimal_total_change(t: int, steps: int, exponent: int) -> Decimal:
    """Return 1 - alpha-bar_t from its definition."""
    getcontext().prec = 50
    s = Decimal("0.008")
    angles = [PI / 2 * ((Decimal(x) / steps) ** exponent + s) / (1 + s) for x in (t, 0)]
    return 1 - (cosine(angles[0]) / cosine(angles[1])) ** 2


@pytest.mark.parametrize(("steps", "exponent"), [(50, 1), (500, 2), (1000, 3)])
def test_changes_keep_their_digits_in_the_first_steps(steps: int, exponent: int) -> None:
    schedule = cosine_schedule(steps, exponent)
    for t in (1, 2, steps // 2):
        wanted = float(decimal_total_change(t, steps, exponent))
        assert float(schedule.total_change[t]) == pytest.approx(wanted, rel=1e-12)
    assert float(schedule.step_change[1]) == pytest.approx(float(decimal_total_change(1, steps, exponent)), rel=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 50])
def test_steps_multiply_to_the_total(steps: int) -> None:
    schedule = cosine_schedule(steps, 1.5)
    assert torch.allclose(schedule.step_keep.cumprod(0), schedule.total_keep, rtol=1e-12, atol=1e-15)
    assert torch.allclose(schedule.step_keep + schedule.step_change, torch.ones(steps + 1, dtype=torch.float64), atol=1e-15)
    assert torch.allclose(schedule.total_keep + schedule.total_change, torch.ones(steps + 1, dtype=torch.float64), atol=1e-15)


def test_nothing_is_noised_at_0_and_nothing_is_left_at_the_end() -> None:
    schedule = cosine_schedule(20, 1.0)
    assert (float(schedule.total_keep[0]), float(schedule.total_change[0])) == (1.0, 0.0)
    assert (float(schedule.total_keep[-1]), float(schedule.total_change[-1])) == (0.0, 1.0)
    assert bool((schedule.total_keep.diff() < 0).all())


@pytest.mark.parametrize(("steps", "exponent", "name"), [(0, 1.0, "steps"), (5, 0.0, "exponent"), (5, float("inf"), "exponent")])
def test_what_is_no_schedule_is_refused(steps: int, exponent: float, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        cosine_schedule(steps, exponent)


K, T = 3, 6


@pytest.fixture(params=["uniform", "marginal"])
def transition(request: pytest.FixtureRequest) -> Transition:
    return Transition(uniform_limit(K) if request.param == "uniform" else skewed_limit(K), cosine_schedule(T, 1.5))


def naive_posterior(transition: Transition, noisy: int, clean: int, t: int) -> Tensor:
    """Bayes' rule with explicit products of the matrices of single steps, [K]."""
    before = torch.eye(K, dtype=torch.float64)
    for s in range(1, t):
        before = before @ transition.step_matrix(s)
    joint = torch.stack([before[clean, z] * transition.step_matrix(t)[z, noisy] for z in range(K)])
    return joint / joint.sum()


def test_total_is_the_product_of_the_steps(transition: Transition) -> None:
    product = torch.eye(K, dtype=torch.float64)
    for t in range(1, T + 1):
        product = product @ transition.step_matrix(t)
        assert torch.allclose(product, transition.total_matrix(t), atol=1e-14)
        assert torch.allclose(product.sum(1), torch.ones(K, dtype=torch.float64), atol=1e-14)


def test_every_class_ends_in_the_limit(transition: Transition) -> None:
    """Also where steps go on for long: the limit stays what it is."""
    assert torch.equal(transition.total_matrix(T), transition.limit.expand(K, K))
    for t in range(1, T + 1):
        assert torch.allclose(transition.limit @ transition.step_matrix(t), transition.limit, atol=1e-15)


def test_posterior_is_bayes_rule(transition: Transition) -> None:
    for t in range(1, T + 1):
        for noisy in range(K):
            for clean in range(K):
                ours = transition.posterior(torch.tensor([[noisy]]), torch.tensor([[clean]]), torch.tensor([t]))[0, 0].exp()
                assert torch.allclose(ours, naive_posterior(transition, noisy, clean, t), atol=1e-13), (t, noisy, clean)


def test_reverse_averages_the_posterior_over_x0(transition: Transition) -> None:
    """Rows of different times in one call, against a loop over x0."""
    source = generator(1)
    noisy = torch.randint(K, (T, 4), generator=source)
    logits = torch.randn(T, 4, K, dtype=torch.float64, generator=source)
    t = torch.arange(1, T + 1)
    ours = transition.reverse(logits, noisy, t).exp()
    p_x0 = logits.softmax(-1)
    for row in range(T):
        for entry in range(4):
            parts = [p_x0[row, entry, x] * naive_posterior(transition, int(noisy[row, entry]), x, row + 1) for x in range(K)]
            assert torch.allclose(ours[row, entry], sum(parts), atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("t", [1, 2, T])
def test_certain_predictions_have_finite_logarithms_and_gradients(transition: Transition, dtype: torch.dtype, t: int) -> None:
    logits = torch.tensor([[[1e4, -1e4, 0.0], [0.0, 0.0, 0.0], [-1e4, 1e4, -1e4]]], dtype=dtype, requires_grad=True)
    log_probs = transition.reverse(logits, torch.tensor([[1, 0, 2]]), torch.tensor([t]))
    assert bool(log_probs.isfinite().all())
    # 1e4 below the largest, float32 holds a logarithm to 1e-3 at best; the mass of it is that of what is not negligible.
    assert torch.allclose(log_probs.logsumexp(-1), torch.zeros(1, 3, dtype=log_probs.dtype), atol=1e-4)
    log_probs.sum().backward()
    assert bool(logits.grad.isfinite().all())


def test_corruption_has_the_frequencies_of_its_matrix(transition: Transition) -> None:
    clean = torch.full((2, 20_000), 2)
    before = clean.clone()
    drawn = transition.corrupt(clean, torch.tensor([2, T]), generator=generator(3))
    assert torch.equal(clean, before)
    for row, t in enumerate((2, T)):
        wanted = transition.total_matrix(t)[2] * clean.shape[1]
        assert chisquare(torch.bincount(drawn[row], minlength=K).numpy(), wanted.numpy()).pvalue > 1e-3
    assert torch.equal(transition.corrupt(clean, torch.tensor([0, 0]), generator=generator(3)), clean)


def test_tables_follow_from_parameters_and_the_limit_is_stored(transition: Transition) -> None:
    assert set(transition.state_dict()) == {"limit"}
    assert transition.limit.dtype == torch.float64


def test_marginals_are_shares_of_counts() -> None:
    assert marginal_limit(torch.tensor([6, 3, 0]), 1.0).tolist() == pytest.approx([7 / 12, 4 / 12, 1 / 12])
    with pytest.raises(ValueError, match="every class must occur in the training data, got none of class 2"):
        marginal_limit(torch.tensor([6, 3, 0]), 0.0)
    with pytest.raises(ValueError, match="smoothing must be at least 0"):
        marginal_limit(torch.tensor([6, 3, 0]), -1.0)
    with pytest.raises(ValueError, match="limit must be K probabilities"):
        Transition(torch.tensor([1.0, 0.0]), cosine_schedule(3, 1.0))
