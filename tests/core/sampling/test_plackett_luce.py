import math
from functools import partial
from itertools import permutations, product

import pytest
import torch
from refusals import refuses
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
def test_likelihoods_agree_with_a_naive_loop(k, temperature):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4, 9, dtype=F64, generator=generator)
    allowed = torch.rand(4, 9, generator=generator) < 0.8
    allowed[:, :5] = True
    names = {"temperature": temperature, "is_allowed": allowed}
    actions = gumbel_top_k(logits, k, 6, generator=generator, **names)
    want, alone = torch.zeros(2, 4, 6, k, dtype=F64)
    for p, g in product(range(4), range(6)):
        row = logits[p].tolist(), actions[p, g].tolist(), allowed[p].tolist(), temperature
        want[p, g] = torch.tensor(naive_logprobs(*row), dtype=F64)
        alone[p, g] = torch.tensor([naive_logprobs(row[0], [action], *row[2:])[0] for action in row[1]], dtype=F64)
    torch.testing.assert_close(plackett_luce_logprobs(logits, actions, **names), want, atol=1e-12, rtol=0)
    torch.testing.assert_close(independent_logprobs(logits, actions, **names), alone, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("gap", [20.0, 60.0, 300.0])
def test_is_exact_when_one_cell_holds_nearly_all_mass(dtype, gap):
    logits = torch.tensor([[gap, 0.0, 1.0, 2.0, 3.0]], dtype=dtype)
    got = plackett_luce_logprobs(logits, torch.tensor([[[0, 4, 1]]]), is_allowed=torch.ones(1, 5, dtype=torch.bool))[0, 0]
    want = torch.tensor(naive_logprobs(logits[0].tolist(), [0, 4, 1], [True] * 5, 1.0), dtype=dtype)
    ulp = torch.finfo(dtype).eps
    # The first term is the difference of two numbers of size gap; the later ones owe nothing to the large cell.
    torch.testing.assert_close(got[:1], want[:1], atol=gap * ulp, rtol=0)
    torch.testing.assert_close(got[1:], want[1:], atol=0, rtol=4 * ulp)


@pytest.mark.parametrize("draws_per_choice", [1, 2, 4])  # with 1 nearly half of the samples are completed with noise
def test_the_draws_of_each_row_follow_its_own_likelihood(draws_per_choice, monkeypatch):
    monkeypatch.setattr(plackett_luce, "DRAWS_PER_CHOICE", draws_per_choice)
    logits = torch.tensor([[0.0, 0.7, -0.5, 1.2, 9.0], [-0.5, 1.5, 9.0, 0.2, -0.4], [0.5, 9.0, -0.9, 1.7, 9.0]], dtype=F64)
    allowed, n = logits < 9, 40_000
    drawn = gumbel_top_k(logits, 3, n, generator=torch.Generator().manual_seed(2), temperature=0.8, is_allowed=allowed)
    for row, base in product(range(3), [torch.tensor([25, 5, 1])]):
        subsets = torch.tensor(list(permutations(allowed[row].nonzero()[:, 0].tolist(), 3)))
        counts = torch.bincount((drawn[row] * base).sum(-1), minlength=125)[(subsets * base).sum(-1)]
        assert int(counts.sum()) == n
        for temperature in (0.8, 1.0):
            names = {"temperature": temperature, "is_allowed": allowed[row, None]}
            logprobs = plackett_luce_logprobs(logits[row, None], subsets[None], **names)
            pvalue = chisquare(counts.numpy(), (n * logprobs.sum(-1).exp()[0]).numpy()).pvalue
            assert pvalue > 0.01 if temperature == 0.8 else pvalue < 1e-6  # the test has power


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


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_a_choice_that_is_not_allowed_is_never_drawn(uniform, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 9, generator=generator)
    allowed = torch.rand(50, 9, generator=generator) < 0.5
    allowed[:, 4] = True
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, **_: torch.full(shape, uniform, dtype=dtype))
    drawn = gumbel_top_k(logits, 1, 1, generator=generator, is_allowed=allowed)[:, 0, 0]
    assert drawn.tolist() == [row.nonzero()[:, 0].tolist()[0 if uniform == 0 else -1] for row in allowed]
    # A generator that draws exactly 0: the noise is -log(0), and -inf + inf is NaN, which topk would take first.
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, generator: self.zero_())
    z = torch.tensor([[5.0, 1.0, 2.0, -math.inf]])
    assert perturbed_top_k(z, 4, 1, generator=torch.Generator()).tolist() == [[[0, 2, 1, 3]]]


def test_gradients_by_finite_differences_also_of_every_allowed_cell():
    logits = torch.randn(3, 6, dtype=F64, requires_grad=True, generator=torch.Generator().manual_seed(0))
    allowed = torch.tensor([[True] * 6, [True, True, True, False, False, False], [True, False, True, False, True, False]])
    actions = torch.tensor([[[5, 0, 3], [4, 2, 1]], [[2, 0, 1], [0, 1, 2]], [[4, 2, 0], [0, 4, 2]]])
    score = partial(plackett_luce_logprobs, actions=actions, temperature=0.7, is_allowed=allowed)
    assert not score(logits)[1:, :, -1].any()  # the last cell is certain
    for function in (score, lambda z: categorical_entropy(z, allowed, 0.7)):
        assert torch.autograd.gradcheck(function, logits)
        (gradient,) = torch.autograd.grad(function(logits).sum(), logits)
        assert torch.count_nonzero(gradient[~allowed]) == 0


def test_entropy_is_analytic_in_nats_and_masked_cells_count_for_nothing():
    allowed = torch.tensor([[True, True, True, True, False]])
    # Uniform over 4 cells: log 4; p = (1/2, 1/4, 1/8, 1/8): H = log 2 * (1/2 + 2/4 + 3/8 + 3/8); the last cell is not allowed.
    skewed = torch.tensor([0.5, 0.25, 0.125, 0.125, 1.0], dtype=F64).log()
    # Halving the temperature squares p: (1/4, 1/16, 1/64, 1/64) / (22/64) = (16, 4, 1, 1) / 22
    squared = -sum(p * math.log(p) for p in (16 / 22, 4 / 22, 1 / 22, 1 / 22))
    for logits, temperature, want in [
        (torch.tensor([2.0, 2.0, 2.0, 2.0, 99.0], dtype=F64), 1.0, math.log(4)),
        (skewed, 1.0, 1.75 * math.log(2)),
        (skewed, 0.5, squared),
    ]:
        assert float(categorical_entropy(logits[None], allowed, temperature)) == pytest.approx(want, abs=1e-14)
        policy = log_policy(logits[None], allowed, temperature)
        assert float(entropy_of(policy)) == pytest.approx(want, abs=1e-14)
        assert policy[0, 4] == -math.inf


ONE_SHORT_ROW = torch.tensor([[True, True, True], [True, False, False]])


def draw(k):
    return gumbel_top_k(torch.zeros(2, 3), k, 4, generator=torch.Generator(), is_allowed=ONE_SHORT_ROW)


test_refuses = refuses(
    (lambda: draw(2), "row 1 must allow at least 2 choices, got 1"),
    (lambda: draw(0), "number of choices must be at least 1, got 0"),
    (lambda: masked_logits(torch.zeros(2, 3), torch.tensor([[True] * 3, [False] * 3])), "row 1 must allow at least 1"),
    (lambda: log_policy(torch.zeros(2, 3), ONE_SHORT_ROW, 0.0), "temperature must be above 0, got 0.0"),
    (lambda: plackett_luce_logprobs(torch.zeros(1, 3), torch.tensor([[[0, 1], [2, 2]]]), is_allowed=ONE_SHORT_ROW[:1]),
     "repeat in row 0, sample 1"),
)  # fmt: skip
