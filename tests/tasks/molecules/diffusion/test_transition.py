import pytest
import torch
from scipy.stats import chisquare
from tiny_graphs import generator, skewed_limit
from torch import Tensor

from grpo_pipeline.tasks.molecules.diffusion.noise import Transition, cosine_schedule, marginal_limit, uniform_limit

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


def test_reverse_has_the_gradient_of_finite_differences(transition: Transition) -> None:
    logits = torch.randn(3, 2, K, dtype=torch.float64, generator=generator(2), requires_grad=True)
    noisy, t = torch.tensor([[0, 1], [2, 2], [1, 0]]), torch.tensor([1, 3, T])
    assert torch.autograd.gradcheck(lambda x: transition.reverse(x, noisy, t), (logits,))


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
