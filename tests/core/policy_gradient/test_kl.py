import math
from itertools import product

import pytest
import torch

from grpo_pipeline.core.policy_gradient.kl import (
    categorical_kl,
    k3,
    kl_in_reward,
    kl_loss,
    rollout_kl_loss,
    unbounded_k3,
)
from grpo_pipeline.core.policy_gradient.losses import importance_ratio

F64 = torch.float64
INF = math.inf


def test_k3_keeps_digits_near_zero():
    # k3 ~ d^2 / 2 near 0; exp(d) - d - 1 in float32 returns 0 here.
    got = k3(torch.tensor(0.0), torch.tensor(1e-3))
    assert float(got) == pytest.approx(0.5e-6, rel=1e-2)


def test_categorical_kl_agrees_with_torch_and_is_zero_for_equal_policies():
    generator = torch.Generator().manual_seed(0)
    log_p = torch.randn(4, 7, dtype=F64, generator=generator).log_softmax(-1)
    log_q = torch.randn(4, 7, dtype=F64, generator=generator).log_softmax(-1)
    allowed = torch.ones(4, 7, dtype=torch.bool)
    want = torch.distributions.kl_divergence(
        torch.distributions.Categorical(log_p.exp()), torch.distributions.Categorical(log_q.exp())
    )
    torch.testing.assert_close(categorical_kl(log_p, log_q, allowed), want, atol=1e-12, rtol=0)
    assert torch.count_nonzero(categorical_kl(log_p, log_p, allowed)) == 0


def test_masked_entries_contribute_exactly_nothing_forward_and_backward():
    allowed = torch.tensor([[True, True, False, True]])
    logits = torch.tensor([[1.0, 2.0, 50.0, -1.0]], dtype=F64, requires_grad=True)
    ref_logits = torch.tensor([[0.0, 1.0, -9.0, 3.0]], dtype=F64)
    log_p = logits.masked_fill(~allowed, -INF).log_softmax(-1)
    log_q = ref_logits.masked_fill(~allowed, -INF).log_softmax(-1)
    kl = categorical_kl(log_p, log_q, allowed)
    small_p, small_q = logits.detach()[:, [0, 1, 3]].log_softmax(-1), ref_logits[:, [0, 1, 3]].log_softmax(-1)
    torch.testing.assert_close(kl, (small_p.exp() * (small_p - small_q)).sum(-1), atol=1e-14, rtol=0)
    kl.sum().backward()
    assert bool(logits.grad.isfinite().all())
    assert float(logits.grad[0, 2]) == 0.0
    assert float(logits.grad.abs().max()) > 0


def test_zero_probability_is_no_nan_and_a_missing_support_is_infinite():
    log_half = math.log(0.5)
    log_p = torch.tensor([[log_half, log_half, -INF]], requires_grad=True)
    log_q = torch.tensor([[log_half, -INF, log_half]])
    allowed = torch.ones(1, 3, dtype=torch.bool)
    assert categorical_kl(log_p, log_q, allowed).tolist() == [INF]
    same = categorical_kl(log_p, log_p.detach(), allowed)
    same.sum().backward()
    assert same.tolist() == [0.0]
    assert bool(log_p.grad.isfinite().all())


def example(seed=0, spread=0.4):
    """Log-probs now, at sampling time and under the reference, and a mask with one wholly invalid row."""
    generator = torch.Generator().manual_seed(seed)
    new = torch.randn(2, 3, 4, dtype=F64, generator=generator) - 2
    old, ref = (new + spread * torch.randn(2, 3, 4, dtype=F64, generator=generator) for _ in range(2))
    is_valid = torch.rand(2, 3, 4, generator=generator) < 0.6
    is_valid[0, 1] = False
    return new, old, ref, is_valid


INPUTS = example()


def loss_of(estimator, new, old, ref, is_valid, reduction="per_sequence", level="decision", **options):
    """Each KL term of the loss under one signature; ``rollout`` is the one towards the rollout policy."""
    if estimator == "rollout":
        return rollout_kl_loss(new, old, is_valid, reduction=reduction, **options)
    ratio = importance_ratio(new, old, is_valid, level=level) if estimator == "ratio_k3" else None
    return kl_loss(new, ref, is_valid, estimator=estimator, ratio=ratio, reduction=reduction, **options)


TERMS = ("k2", "k3", "ratio_k3", "rollout")
REDUCTIONS = ("per_sequence", "per_decision", "constant", "per_decision_local")


def naive_kl_loss(estimator, new, old, ref, is_valid, reduction, level):
    rows = []
    for p, g in product(range(new.shape[0]), range(new.shape[1])):
        picked = [
            (float(x), float(y), float(z))
            for x, y, z, m in zip(new[p, g], old[p, g], ref[p, g], is_valid[p, g], strict=True)
            if m
        ]
        distances = [x - y for x, y, _ in picked]
        whole = {"joint": sum(distances), "sequence": sum(distances) / max(1, len(picked))}
        row = []
        for x, y, z in picked:
            r = math.exp(min(20.0, whole.get(level, x - y)))
            plain = min(10.0, math.exp(z - x) - (z - x) - 1)
            rollout = min(10.0, math.exp(x - y) - (x - y) - 1)
            row.append({"k2": (x - z) ** 2 / 2, "k3": plain, "ratio_k3": r * plain, "rollout": rollout}[estimator])
        rows.append(row)
    if reduction == "per_sequence":
        return sum(sum(row) / max(1, len(row)) for row in rows) / len(rows)
    return sum(map(sum, rows)) / (len(rows) * new.shape[-1] if reduction == "constant" else sum(map(len, rows)))


@pytest.mark.parametrize("spread", [0.4, 7.0])
@pytest.mark.parametrize(("estimator", "reduction", "level"), list(product(TERMS, REDUCTIONS, ("decision", "joint", "sequence"))))
def test_kl_losses_agree_with_a_naive_loop(estimator, reduction, level, spread):
    data = example(1, spread)
    want = naive_kl_loss(estimator, *data, reduction, level)
    assert float(loss_of(estimator, *data, reduction, level)) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize(("estimator", "level"), list(product(TERMS, ("decision", "joint", "sequence"))))
def test_kl_loss_gradients_by_finite_differences(estimator, level):
    new, old, ref, is_valid = example(2)
    assert torch.autograd.gradcheck(
        lambda x: loss_of(estimator, x, old, ref, is_valid, "per_sequence", level), new.requires_grad_()
    )


@pytest.mark.parametrize("estimator", TERMS)
def test_invalid_decisions_add_nothing_to_a_kl_loss_even_at_minus_infinity(estimator):
    new, old, ref, is_valid = example()
    before = float(loss_of(estimator, new, old, ref, is_valid))
    padded = new.masked_fill(~is_valid, -INF).requires_grad_()
    loss = loss_of(estimator, padded, *(x.masked_fill(~is_valid, -INF) for x in (old, ref)), is_valid)
    loss.backward()
    assert float(loss.detach()) == before
    assert bool(padded.grad.isfinite().all())
    assert torch.count_nonzero(padded.grad[~is_valid]) == 0
    assert torch.count_nonzero(padded.grad[is_valid]) > 0


def test_a_given_denominator_replaces_that_of_the_call():
    data = example()
    for estimator in TERMS:
        whole = float(loss_of(estimator, *data, "per_decision")) * int(data[-1].sum())
        denominator = torch.tensor(50.0, dtype=F64)
        assert float(loss_of(estimator, *data, "per_decision", denominator=denominator)) == pytest.approx(whole / 50, rel=1e-14)


def expected_gradient(estimator, logits, old, ref):
    """Expectation over the choices, drawn with the probabilities exp(old), of the gradient that each of them gives."""
    logits = logits.clone().requires_grad_()
    choices = len(logits)
    log_p = logits.log_softmax(-1).reshape(choices, 1, 1)
    arguments = (log_p, old.reshape(choices, 1, 1), ref.reshape(choices, 1, 1), torch.ones(choices, 1, 1, dtype=torch.bool))
    # One row per choice, weighted: P = V prompts, one sample each; a denominator of 1 keeps the sum.
    total = sum(p * loss_of(estimator, *(x[i : i + 1] for x in arguments), denominator=1.0) for i, p in enumerate(old.exp()))
    return torch.autograd.grad(total, logits)[0]


def exact_gradient(logits, divergence):
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad(divergence(logits.log_softmax(-1)), logits)[0]


def divergence(log_a, log_b):
    return (log_a.exp() * (log_a - log_b)).sum()


def test_which_divergence_each_estimator_descends_by_enumeration():
    generator = torch.Generator().manual_seed(3)
    logits, moved, reference = (torch.randn(5, dtype=F64, generator=generator) for _ in range(3))
    ref, other, now = reference.log_softmax(-1), moved.log_softmax(-1), logits.log_softmax(-1)
    to_reference = exact_gradient(logits, lambda p: divergence(p, ref))
    from_reference = exact_gradient(logits, lambda p: divergence(ref, p))
    from_rollout = exact_gradient(logits, lambda p: divergence(other, p))

    def agree(a, b):
        return bool((a - b).abs().max() < 1e-12)

    assert agree(expected_gradient("k2", logits, now, ref), to_reference)
    assert agree(expected_gradient("k3", logits, now, ref), from_reference)
    assert agree(expected_gradient("ratio_k3", logits, now, ref), to_reference)
    # Off-policy only the ratio keeps the promise.
    assert agree(expected_gradient("ratio_k3", logits, other, ref), to_reference)
    assert not agree(expected_gradient("k2", logits, other, ref), to_reference)
    assert not agree(expected_gradient("k3", logits, other, ref), from_reference)
    assert agree(expected_gradient("rollout", logits, other, ref), from_rollout)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_reward_is_the_estimate_per_decision_and_detached(estimator):
    old, _, ref, is_valid = example()
    holes = [x.masked_fill(~is_valid, -INF).requires_grad_() for x in (old, ref)]
    got = kl_in_reward(*holes, is_valid, estimator=estimator)
    for index in product(*map(range, old.shape)):
        drawn, q = float(old[index]), float(ref[index])
        want = {"k1": drawn - q, "k2": (drawn - q) ** 2 / 2, "k3": math.exp(q - drawn) - (q - drawn) - 1}[estimator]
        assert float(got[index]) == pytest.approx(want if is_valid[index] else 0.0, abs=1e-14)
    assert not got.requires_grad
    assert torch.count_nonzero(got[~is_valid]) == 0


@pytest.mark.parametrize("estimator", TERMS)
@pytest.mark.parametrize("level", ["decision", "joint", "sequence"])
@pytest.mark.parametrize("x", [11.5, -11.5, 89.0, -89.0, 100.0, -100.0, 1000.0, -1000.0])
def test_a_kl_that_would_overflow_is_bounded_with_its_gradient(estimator, level, x):
    """The reference and the rollout policy are x nats away, float32: value and gradient are finite, and at most 10 for k3."""
    new, is_valid = torch.zeros(1, 2, 3, requires_grad=True), torch.ones(1, 2, 3, dtype=torch.bool)
    other = torch.full((1, 2, 3), x)
    loss = loss_of(estimator, new, other, other, is_valid, "per_decision", level)
    (gradient,) = torch.autograd.grad(loss, new)
    assert bool(loss.isfinite())
    assert bool(gradient.isfinite().all())
    if estimator in ("k3", "rollout"):
        # At -+11.5 both exp(11.5) - 12.5 and 10.5 are above 10.
        assert float(loss.detach()) == 10.0
        assert torch.count_nonzero(gradient) == 0
    if estimator == "k2":
        assert float(loss.detach()) == x * x / 2


def test_inside_of_its_bounds_k3_is_the_unbounded_formula_to_the_bit():
    difference = torch.linspace(-10.9, 2.6, 1001, dtype=F64)
    assert torch.equal(k3(torch.zeros_like(difference), difference), difference.expm1() - difference)
    assert float(unbounded_k3(torch.tensor(-1000.0))) == 999.0
    assert bool(unbounded_k3(torch.tensor(1000.0)).isfinite())


def kl_loss_of(**change):
    new, _, ref, is_valid = example()
    return kl_loss(**{"logprobs": new, "ref_logprobs": ref, "is_valid": is_valid, "estimator": "k3"} | change)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kl_loss_of(estimator="k1"), "k2, k3 or ratio_k3, got 'k1'; the gradient of k1 is zero on average"),
        (lambda: kl_loss_of(estimator="k4"), "estimator must be one of k2, k3, ratio_k3, got 'k4'"),
        (lambda: kl_loss_of(estimator="ratio_k3"), "for estimator ratio_k3 and for no other, got none for 'ratio_k3'"),
        (lambda: kl_loss_of(ratio=torch.ones(2, 3, 4)), "for no other, got one for 'k3'"),
        (lambda: kl_loss_of(ref_logprobs=torch.zeros(2, 3)), r"\[P, G, L\], got \[2, 3, 4\], \[2, 3\] and \[2, 3, 4\]"),
        (lambda: kl_loss_of(ref_logprobs=torch.zeros(2, 3, 4, requires_grad=True)), "ref_logprobs must carry no gradient"),
        (lambda: kl_loss_of(reduction="mean"), "reduction must be one of"),
        (lambda: kl_in_reward(*example()[1:], estimator="ratio_k3"), "must be one of k1, k2, k3, got 'ratio_k3'"),
        (lambda: kl_in_reward(INPUTS[0], INPUTS[2][:1], INPUTS[3], estimator="k1"), "must share one shape"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
