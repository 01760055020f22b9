import math
from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare

from grpo_pipeline.core.sampling import plackett_luce
from grpo_pipeline.core.sampling.plackett_luce import (
    categorical_entropy,
    entropy_of,
    gumbel_top_k,
    independent_logprobs,
    log_policy,
    masked_logits,
    perturbed_top_k,
    plackett_luce_logprobs,
)

F64 = torch.float64


def everything_allowed(logits):
    return torch.ones_like(logits, dtype=torch.bool)


def naive_logprobs(logits, actions, allowed, temperature):
    """One sample, one decision at a time, with Python's float sums."""
    left = {v: z / temperature for v, (z, ok) in enumerate(zip(logits, allowed, strict=True)) if ok}
    result = []
    for action in actions:
        top = max(left.values())
        result.append(left[action] - top - math.log(math.fsum(math.exp(z - top) for z in left.values())))
        del left[action]
    return result


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_likelihood_agrees_with_a_naive_loop(k, temperature):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4, 9, dtype=F64, generator=generator)
    allowed = torch.rand(4, 9, generator=generator) < 0.8
    allowed[:, :5] = True
    actions = gumbel_top_k(logits, k, 6, generator=generator, temperature=temperature, is_allowed=allowed)
    got = plackett_luce_logprobs(logits, actions, temperature=temperature, is_allowed=allowed)
    want = [
        [naive_logprobs(logits[p].tolist(), actions[p, g].tolist(), allowed[p].tolist(), temperature) for g in range(6)]
        for p in range(4)
    ]
    torch.testing.assert_close(got, torch.tensor(want, dtype=F64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("logits", [[0.0, 0.7, -0.5, 1.2, 9.0], [-0.5, 1.5, 0.2, -0.4, 9.0]])  # the last cell is not allowed
@pytest.mark.parametrize("draws_per_choice", [1, 2, 4])  # with 1 nearly half of the samples are completed with noise
def test_draws_follow_the_likelihood(logits, draws_per_choice, monkeypatch):
    monkeypatch.setattr(plackett_luce, "DRAWS_PER_CHOICE", draws_per_choice)
    logits = torch.tensor([logits], dtype=F64)
    allowed = torch.tensor([[True, True, True, True, False]])
    subsets = list(permutations(range(4), 3))
    base = torch.tensor([25, 5, 1])
    n = 40_000
    drawn = gumbel_top_k(logits, 3, n, generator=torch.Generator().manual_seed(1), temperature=0.8, is_allowed=allowed)[0]
    counts = torch.bincount((drawn * base).sum(-1), minlength=125)[(torch.tensor(subsets) * base).sum(-1)]
    assert int(counts.sum()) == n

    def pvalue(temperature):
        logprobs = plackett_luce_logprobs(logits, torch.tensor([subsets]), temperature=temperature, is_allowed=allowed)
        return chisquare(counts.numpy(), (n * logprobs.sum(-1).exp()[0]).numpy()).pvalue

    assert pvalue(0.8) > 0.01
    assert pvalue(1.0) < 1e-6  # the test has power


def test_rows_of_one_batch_follow_their_own_likelihoods():
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(3, 6, dtype=F64, generator=generator)
    allowed = torch.tensor([[True] * 6, [False, True, True, True, False, True], [True, False, True, False, False, False]])
    n = 20_000
    drawn = gumbel_top_k(logits, 2, n, generator=generator, is_allowed=allowed)
    for row in range(3):
        pairs = list(permutations(allowed[row].nonzero()[:, 0].tolist(), 2))
        logprobs = plackett_luce_logprobs(logits[row, None], torch.tensor([pairs]), is_allowed=allowed[row, None]).sum(-1)[0]
        counts = torch.bincount(drawn[row, :, 0] * 6 + drawn[row, :, 1], minlength=36)[[a * 6 + b for a, b in pairs]]
        assert int(counts.sum()) == n
        assert chisquare(counts.numpy(), (n * logprobs.exp()).numpy()).pvalue > 0.01


def test_cells_behind_one_that_holds_nearly_all_mass_are_drawn_by_their_own_weights():
    # exp(-60) of the mass is left for cells 1..3, which stand 1 : 2 : 4 to each other.
    logits = torch.tensor([[60.0, 0.0, math.log(2), math.log(4), 0.0]])
    allowed = torch.tensor([[True, True, True, True, False]])
    n = 20_000
    drawn = gumbel_top_k(logits, 2, n, generator=torch.Generator().manual_seed(2), is_allowed=allowed)[0]
    assert drawn[:, 0].eq(0).all()
    counts = torch.bincount(drawn[:, 1], minlength=5)
    assert counts[[0, 4]].tolist() == [0, 0]
    assert chisquare(counts[1:4].numpy(), [n / 7, 2 * n / 7, 4 * n / 7]).pvalue > 0.01


def test_a_choice_that_is_not_allowed_is_never_drawn(monkeypatch):
    # A generator that draws exactly 0: the noise is -log(0), and -inf + inf is NaN, which topk would take first.
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, generator: self.zero_())
    z = torch.tensor([[5.0, 1.0, 2.0, -math.inf]])
    assert perturbed_top_k(z, 4, 1, generator=torch.Generator()).tolist() == [[[0, 2, 1, 3]]]


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_uniform_range_hit_allowed_cells(uniform, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 9, generator=generator)
    allowed = torch.rand(50, 9, generator=generator) < 0.5
    allowed[:, 4] = True
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, **_: torch.full(shape, uniform, dtype=dtype))
    drawn = gumbel_top_k(logits, 1, 1, generator=generator, is_allowed=allowed)[:, 0, 0]
    edge = [row.nonzero()[:, 0].tolist()[0 if uniform == 0 else -1] for row in allowed]
    assert drawn.tolist() == edge


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("gap", [20.0, 60.0, 300.0])
def test_is_exact_when_one_cell_holds_nearly_all_mass(dtype, gap):
    logits = torch.tensor([[gap, 0.0, 1.0, 2.0, 3.0]], dtype=dtype)
    got = plackett_luce_logprobs(logits, torch.tensor([[[0, 4, 1]]]), is_allowed=everything_allowed(logits))[0, 0]
    want = naive_logprobs(logits[0].tolist(), [0, 4, 1], [True] * 5, 1.0)
    ulp = torch.finfo(dtype).eps
    # The first term is the difference of two numbers of size gap; the later ones owe nothing to the large cell.
    torch.testing.assert_close(got[:1], torch.tensor(want[:1], dtype=dtype), atol=gap * ulp, rtol=0)
    torch.testing.assert_close(got[1:], torch.tensor(want[1:], dtype=dtype), atol=0, rtol=4 * ulp)


def test_taking_every_allowed_cell_is_finite_forward_and_backward():
    logits = torch.randn(2, 6, dtype=F64, requires_grad=True)
    allowed = torch.tensor([[True, True, True, False, False, False], [True, False, True, False, True, False]])
    actions = torch.tensor([[[2, 0, 1]], [[4, 2, 0]]])
    logprobs = plackett_luce_logprobs(logits, actions, is_allowed=allowed)
    assert logprobs[:, 0, -1].tolist() == [0.0, 0.0]  # the last cell is certain
    logprobs.sum().backward()
    assert bool(logits.grad.isfinite().all())
    assert torch.count_nonzero(logits.grad[~allowed]) == 0
    assert float(logits.grad.abs().max()) > 0


def test_gradients_by_finite_differences():
    logits = torch.randn(3, 6, dtype=F64, requires_grad=True)
    allowed = torch.rand(3, 6, generator=torch.Generator().manual_seed(0)) < 0.7
    allowed[:, :3] = True
    actions = gumbel_top_k(logits, 3, 4, generator=torch.Generator().manual_seed(1), is_allowed=allowed)
    assert torch.autograd.gradcheck(lambda z: plackett_luce_logprobs(z, actions, temperature=0.7, is_allowed=allowed), logits)
    assert torch.autograd.gradcheck(lambda z: categorical_entropy(z, allowed, 0.7), logits)


def test_entropy_is_analytic_in_nats_and_masked_cells_count_for_nothing():
    allowed = torch.tensor([[True, True, True, True, False]])
    # Uniform over 4 cells: log 4. The cell with logit 99 is not allowed.
    uniform = torch.tensor([[2.0, 2.0, 2.0, 2.0, 99.0]], dtype=F64)
    assert float(categorical_entropy(uniform, allowed)) == pytest.approx(math.log(4), abs=1e-14)
    # p = (1/2, 1/4, 1/8, 1/8): H = log 2 * (1/2 + 2/4 + 3/8 + 3/8) = 1.75 log 2
    skewed = torch.tensor([[0.5, 0.25, 0.125, 0.125, 1.0]], dtype=F64).log()
    assert float(categorical_entropy(skewed, allowed)) == pytest.approx(1.75 * math.log(2), abs=1e-14)
    assert float(entropy_of(log_policy(skewed, allowed))) == pytest.approx(1.75 * math.log(2), abs=1e-14)
    assert log_policy(skewed, allowed)[0, 4] == -math.inf
    # Halving the temperature squares p: (1/4, 1/16, 1/64, 1/64) / (22/64) = (16, 4, 1, 1) / 22
    squared = [16 / 22, 4 / 22, 1 / 22, 1 / 22]
    assert float(categorical_entropy(skewed, allowed, 0.5)) == pytest.approx(-sum(p * math.log(p) for p in squared), abs=1e-14)


ONE_SHORT_ROW = torch.tensor([[True, True, True], [True, False, False]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: gumbel_top_k(torch.zeros(2, 3), 2, 4, generator=torch.Generator(), is_allowed=ONE_SHORT_ROW),
            "row 1 must allow at least 2 choices, got 1",
        ),
        (lambda: masked_logits(torch.zeros(2, 3), torch.tensor([[True] * 3, [False] * 3])), "row 1 must allow at least 1"),
        (lambda: log_policy(torch.zeros(2, 3), ONE_SHORT_ROW, 0.0), "temperature must be above 0, got 0.0"),
        (
            lambda: gumbel_top_k(torch.zeros(2, 3), 0, 4, generator=torch.Generator(), is_allowed=ONE_SHORT_ROW),
            "number of choices must be at least 1, got 0",
        ),
        (
            lambda: plackett_luce_logprobs(
                torch.zeros(1, 3), torch.tensor([[[0, 1], [2, 2]]]), is_allowed=torch.ones(1, 3, dtype=torch.bool)
            ),
            "repeat in row 0, sample 1",
        ),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_independent_terms_are_those_of_single_draws():
    logits = torch.tensor([[0.3, -1.2, 1.5, 0.0], [2.0, 0.0, -1.0, 9.0]], dtype=torch.float64)
    allowed = torch.tensor([[True] * 4, [True, True, True, False]])
    actions = torch.tensor([[[2, 0], [1, 3]], [[0, 1], [2, 0]]])
    got = independent_logprobs(logits, actions, temperature=0.7, is_allowed=allowed)
    for p in range(2):
        z = {v: float(logits[p, v]) / 0.7 for v in range(4) if allowed[p, v]}
        total = math.log(math.fsum(math.exp(x) for x in z.values()))
        for g in range(2):
            assert got[p, g].tolist() == pytest.approx([z[a] - total for a in actions[p, g].tolist()], abs=1e-12)
