import numpy as np
import pytest
import torch
from mpmath import mp
from scipy.stats import chisquare
from tiny_graphs import CLASSES, generator, graph_noise, noise_params, prompts, random_graphs, skewed_limit
from torch import Tensor

from grpo_pipeline.tasks.molecules.diffusion.noise import count_classes, limits_of
from grpo_pipeline.tasks.molecules.diffusion.noise_schedule import cosine_schedule
from grpo_pipeline.tasks.molecules.diffusion.transition import Transition, marginal_limit, uniform_limit
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_entries import entries_of, graphs_of


def test_a_corrupted_graph_is_a_graph() -> None:
    """Symmetric, nothing outside it (``graphs_of`` checks), and the components do not write into each other or into x0."""
    graphs, noise, wanted = random_graphs([5, 2, 1], 5), graph_noise(), prompts([5, 2, 1], 5)
    clean = entries_of(graphs)
    before = clean.each(torch.clone)
    for t in (0, 3, 5):
        noisy = noise.corrupt(clean, torch.full((3,), t), wanted.masks, generator=generator(t))
        graphs_of(noisy, graphs.sizes)
        assert t or all(noisy.each(torch.equal, clean))
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


def test_limits_are_uniform_or_the_shares_of_the_data_counting_each_pair_once() -> None:
    graphs = random_graphs([3, 2], 5)
    counts = count_classes(graphs, CLASSES)
    assert [float(count.sum()) for count in counts] == [5.0, 5.0, 4.0]  # 3 + 2 nodes; 3 + 1 pairs
    bonds = [int(graphs.bonds[row, i, j]) for row, size in ((0, 3), (1, 2)) for i in range(size) for j in range(i)]
    assert counts.bonds.tolist() == [float(bonds.count(k)) for k in range(CLASSES.bonds)]
    graphs = random_graphs([5] * 20, 5)
    uniform = limits_of(noise_params(), graphs, CLASSES)
    assert [len(limit) for limit in uniform] == list(CLASSES)
    assert uniform.bonds.tolist() == [0.25] * 4
    marginal = limits_of(noise_params(limit="marginal"), graphs, CLASSES)
    assert torch.allclose(marginal.bonds, (count_classes(graphs, CLASSES).bonds + 1) / 204)
    assert marginal_limit(torch.tensor([6, 3, 0])).tolist() == pytest.approx([7 / 12, 4 / 12, 1 / 12])
    for call, message in [
        (lambda: limits_of(noise_params(limit="marginal"), graphs, Components(3, 2, 2)), "bonds must be classes below 2, got 3"),
        (lambda: limits_of(noise_params(limit="marginal"), graphs, Components(3, 2, 3)), "bonds must be classes below 3, got 3"),
        (lambda: Transition(torch.tensor([1.0, 0.0]), cosine_schedule(3, 1.0)), "limit must be K probabilities"),
        (lambda: cosine_schedule(0, 1.0), "steps must be"),
        (lambda: cosine_schedule(5, 0.0), "exponent must be"),
        (lambda: cosine_schedule(5, float("inf")), "exponent must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(("steps", "exponent"), [(1, 1.5), (20, 1), (500, 2), (1000, 3)])
def test_the_schedule_is_the_cosine_to_the_last_digit(steps: int, exponent: float) -> None:
    """From nothing at 0 to everything at the end; in the first steps a difference of numbers near 1 would lose its digits."""
    schedule = cosine_schedule(steps, exponent)
    with mp.workdps(50):
        angles = [mp.pi / 2 * ((mp.mpf(t) / steps) ** exponent + mp.mpf("0.008")) / mp.mpf("1.008") for t in range(steps)]
        total_change = [float(1 - (mp.cos(angle) / mp.cos(angles[0])) ** 2) for angle in angles] + [1.0]
    expected = torch.tensor(total_change, dtype=torch.float64)
    torch.testing.assert_close(schedule.total_change, expected, rtol=1e-12, atol=1e-18)  # an angle is rounded, 1 is not
    torch.testing.assert_close(schedule.total_keep, 1 - expected, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(schedule.step_keep.cumprod(0), schedule.total_keep, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(schedule.step_change, 1 - schedule.step_keep, rtol=0, atol=1e-14)
    assert float(schedule.step_change[1]) == pytest.approx(total_change[1], rel=1e-12, abs=1e-18)


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


def test_total_is_the_product_of_the_steps_and_every_class_ends_in_the_limit(transition: Transition) -> None:
    """Also where steps go on for long: the limit stays what it is. It alone is stored, the tables follow from parameters."""
    product = torch.eye(K, dtype=torch.float64)
    for t in range(1, T + 1):
        product = product @ transition.step_matrix(t)
        assert torch.allclose(product, transition.total_matrix(t), atol=1e-14)
        assert torch.allclose(product.sum(1), torch.ones(K, dtype=torch.float64), atol=1e-14)
        assert torch.allclose(transition.limit @ transition.step_matrix(t), transition.limit, atol=1e-15)
    assert torch.equal(transition.total_matrix(T), transition.limit.expand(K, K))
    assert {name: part.dtype for name, part in transition.state_dict().items()} == {"limit": torch.float64}


def test_posterior_is_bayes_rule_and_reverse_averages_it_over_x0(transition: Transition) -> None:
    """Rows of different times in one call, against a loop over x0."""
    noisy = torch.arange(K).expand(T, K)
    logits = torch.randn(T, K, K, dtype=torch.float64, generator=generator(1))
    t = torch.arange(1, T + 1)
    ours, p_x0 = transition.reverse(logits, noisy, t).exp(), logits.softmax(-1)
    for row, entry in np.ndindex(T, K):
        rule = torch.stack([naive_posterior(transition, entry, x, row + 1) for x in range(K)])
        found = transition.posterior(torch.full((1, K), entry), torch.arange(K)[None], t[row : row + 1])[0].exp()
        assert torch.allclose(found, rule, atol=1e-13), (row, entry)
        assert torch.allclose(ours[row, entry], p_x0[row, entry] @ rule, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_certain_predictions_have_finite_logarithms_and_gradients(transition: Transition, dtype: torch.dtype) -> None:
    for t in (1, 2, T):
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
