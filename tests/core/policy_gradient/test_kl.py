import math
from itertools import product

import pytest
import torch
from refusals import refuses

from grpo_pipeline.core.policy_gradient.kl import categorical_kl, k3, kl_in_reward, kl_loss, unbounded_k3
from grpo_pipeline.core.policy_gradient.ratios import importance_ratio

F64 = torch.float64
INF = math.inf


def test_k3_keeps_digits_near_zero():
    # k3 ~ d^2 / 2 near 0; exp(d) - d - 1 in float32 returns 0 here.
    assert float(k3(torch.tensor(0.0), torch.tensor(1e-3))) == pytest.approx(0.5e-6, rel=1e-2)
    difference = torch.linspace(-10.9, 2.6, 1001, dtype=F64)
    assert torch.equal(k3(torch.zeros_like(difference), difference), difference.expm1() - difference)
    assert float(unbounded_k3(torch.tensor(-1000.0))) == 999.0
    assert bool(unbounded_k3(torch.tensor(1000.0)).isfinite())


def test_categorical_kl_agrees_with_torch_over_the_allowed_choices():
    generator = torch.Generator().manual_seed(0)
    logits, ref = torch.randn(2, 4, 7, dtype=F64, generator=generator)
    allowed = torch.rand(4, 7, generator=generator) < 0.7
    allowed[:, :2] = True
    log_p, log_q = (x.masked_fill(~allowed, -INF).log_softmax(-1) for x in (logits.requires_grad_(), ref))
    got = categorical_kl(log_p, log_q, allowed)
    p, q = (torch.distributions.Categorical(x.detach().exp()) for x in (log_p, log_q))
    torch.testing.assert_close(got.detach(), torch.distributions.kl_divergence(p, q), atol=1e-12, rtol=0)
    assert torch.count_nonzero(categorical_kl(log_p, log_p, allowed)) == 0
    got.sum().backward()
    assert bool(logits.grad.isfinite().all())
    assert logits.grad[~allowed].abs().sum() == 0 < logits.grad.abs().max()


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
    """Log-probs now, at sampling time and under the reference, -inf where the mask is False; one row is wholly invalid."""
    generator = torch.Generator().manual_seed(seed)
    new = torch.randn(2, 3, 4, dtype=F64, generator=generator) - 2
    old, ref = (new + spread * torch.randn(2, 3, 4, dtype=F64, generator=generator) for _ in range(2))
    is_valid = torch.rand(2, 3, 4, generator=generator) < 0.6
    is_valid[0, 1] = False
    return *(x.masked_fill(~is_valid, -INF) for x in (new, old, ref)), is_valid


def loss_of(estimator, new, old, ref, is_valid, reduction="per_sequence", level="decision", **options):
    ratio = importance_ratio(new, old, is_valid, level=level) if estimator == "ratio_k3" else None
    return kl_loss(new, ref, is_valid, estimator=estimator, ratio=ratio, reduction=reduction, **options)


TERMS = ("k2", "k3", "ratio_k3")
REDUCTIONS = ("per_sequence", "per_sequence_sum", "per_decision", "constant", "per_decision_local")


def naive_kl_loss(estimator, new, old, ref, is_valid, reduction, level):
    rows = []
    for p, g in product(range(new.shape[0]), range(new.shape[1])):
        picked = [[float(x[p, g, i]) for x in (new, old, ref)] for i in range(new.shape[2]) if is_valid[p, g, i]]
        distances = [x - y for x, y, _ in picked]
        whole = {"joint": sum(distances), "sequence": sum(distances) / max(1, len(picked))}
        row = []
        for x, y, z in picked:
            r = math.exp(min(20.0, whole.get(level, x - y)))
            plain = min(10.0, math.exp(z - x) - (z - x) - 1)
            row.append({"k2": (x - z) ** 2 / 2, "k3": plain, "ratio_k3": r * plain}[estimator])
        rows.append(row)
    if reduction == "per_sequence":
        return sum(sum(row) / max(1, len(row)) for row in rows) / len(rows)
    counts = {"constant": len(rows) * new.shape[-1], "per_sequence_sum": len(rows)}
    return sum(map(sum, rows)) / counts.get(reduction, sum(map(len, rows)))


@pytest.mark.parametrize(("estimator", "reduction", "level"), list(product(TERMS, REDUCTIONS, ("decision", "joint", "sequence"))))
def test_kl_losses_agree_with_a_naive_loop_and_finite_differences(estimator, reduction, level):
    for spread in (0.4, 7.0):
        data = example(1, spread)
        want = naive_kl_loss(estimator, *data, reduction, level)
        assert float(loss_of(estimator, *data, reduction, level)) == pytest.approx(want, rel=1e-12)
    new, old, ref, is_valid = data = example(2)
    loss = lambda x: loss_of(estimator, x, old, ref, is_valid, reduction, level)  # noqa: E731
    assert torch.autograd.gradcheck(loss, new.requires_grad_())
    (gradient,) = torch.autograd.grad(loss(new), new)
    assert torch.equal(gradient != 0, is_valid)
    if reduction == "per_decision":
        whole = float(loss(new).detach()) * int(is_valid.sum())
        given = loss_of(estimator, *data, reduction, level, denominator=torch.tensor(50.0, dtype=F64))
        assert float(given.detach()) == pytest.approx(whole / 50, rel=1e-14)


def expected_gradient(estimator, logits, old, ref):
    """Expectation over the choices, drawn with the probabilities exp(old), of the gradient that each of them gives."""
    log_p = logits.requires_grad_().log_softmax(-1)
    rows = [x.reshape(-1, 1, 1) for x in (log_p, old, ref, torch.ones(len(logits), dtype=torch.bool))]
    # One row per choice, weighted: P = V prompts, one sample each; a denominator of 1 keeps the sum.
    total = sum(p * loss_of(estimator, *(x[i : i + 1] for x in rows), denominator=1.0) for i, p in enumerate(old.exp()))
    return torch.autograd.grad(total, logits)[0]


def exact_gradient(logits, log_other, *, towards):
    """The gradient of KL(policy || other), or of KL(other || policy)."""
    log_p = logits.requires_grad_().log_softmax(-1)
    a, b = (log_p, log_other) if towards else (log_other, log_p)
    return torch.autograd.grad((a.exp() * (a - b)).sum(), logits)[0]


def test_which_divergence_each_estimator_descends_by_enumeration():
    logits, moved, reference = torch.randn(3, 5, dtype=F64, generator=torch.Generator().manual_seed(3))
    ref, other, now = (x.log_softmax(-1).detach() for x in (reference, moved, logits))
    for estimator, drawn_by, wanted, is_met in [
        ("k2", now, exact_gradient(logits, ref, towards=True), True),
        ("k3", now, exact_gradient(logits, ref, towards=False), True),
        ("ratio_k3", now, exact_gradient(logits, ref, towards=True), True),
        # Off-policy only the ratio keeps the promise.
        ("ratio_k3", other, exact_gradient(logits, ref, towards=True), True),
        ("k2", other, exact_gradient(logits, ref, towards=True), False),
        ("k3", other, exact_gradient(logits, ref, towards=False), False),
    ]:
        distance = (expected_gradient(estimator, logits, drawn_by, ref) - wanted).abs().max()
        assert bool(distance < 1e-12) is is_met, estimator


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_reward_is_the_estimate_per_decision_and_detached(estimator):
    old, _, ref, is_valid = example()
    got = kl_in_reward(old.requires_grad_(), ref.requires_grad_(), is_valid, estimator=estimator)
    gap = (old - ref).detach()[is_valid]
    want = {"k1": gap, "k2": gap**2 / 2, "k3": (-gap).exp() + gap - 1}[estimator]
    torch.testing.assert_close(got, torch.zeros_like(got).masked_scatter(is_valid, want), atol=1e-14, rtol=0)
    assert not got.requires_grad


@pytest.mark.parametrize(("estimator", "level"), list(product(TERMS, ["decision", "joint", "sequence"])))
def test_a_kl_that_would_overflow_is_bounded_with_its_gradient(estimator, level):
    """The reference and the rollout policy are x nats away, float32: value and gradient are finite, and at most 10 for k3."""
    for x in (11.5, -11.5, 89.0, -89.0, 100.0, -100.0, 1000.0, -1000.0):
        new, is_valid = torch.zeros(1, 2, 3, requires_grad=True), torch.ones(1, 2, 3, dtype=torch.bool)
        other = torch.full((1, 2, 3), x)
        loss = loss_of(estimator, new, other, other, is_valid, "per_decision", level)
        (gradient,) = torch.autograd.grad(loss, new)
        assert bool(gradient.isfinite().all())
        # At -+11.5 both exp(11.5) - 12.5 and 10.5 are above 10.
        bound = {"k3": 10.0, "rollout": 10.0, "k2": x * x / 2}.get(estimator)
        assert float(loss.detach()) == bound if bound else bool(loss.isfinite())
        assert estimator not in ("k3", "rollout") or torch.count_nonzero(gradient) == 0


def kl_loss_of(**change):
    new, _, ref, is_valid = example()
    return kl_loss(**{"logprobs": new, "ref_logprobs": ref, "is_valid": is_valid, "estimator": "k3"} | change)


test_refuses = refuses(
    (lambda: kl_loss_of(estimator="k1"), "k2, k3 or ratio_k3, got 'k1'; the gradient of k1 is zero on average"),
    (lambda: kl_loss_of(estimator="k4"), "estimator must be one of k2, k3, ratio_k3, got 'k4'"),
    (lambda: kl_loss_of(estimator="ratio_k3"), "for estimator ratio_k3 and for no other, got none for 'ratio_k3'"),
    (lambda: kl_loss_of(ratio=torch.ones(2, 3, 4)), "for no other, got one for 'k3'"),
    (lambda: kl_loss_of(ref_logprobs=torch.zeros(2, 3)), r"\[P, G, L\], got \[\[2, 3, 4\], \[2, 3\], \[2, 3, 4\]\]"),
    (lambda: kl_loss_of(ref_logprobs=torch.zeros(2, 3, 4, requires_grad=True)), "ref_logprobs must carry no gradient"),
    (lambda: kl_loss_of(reduction="mean"), "reduction must be one of"),
    (lambda: kl_in_reward(*example()[1:], estimator="ratio_k3"), "must be one of k1, k2, k3, got 'ratio_k3'"),
    (lambda: kl_in_reward(example()[0], example()[2][:1], example()[3], estimator="k1"), "must share one shape"),
)
