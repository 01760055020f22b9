import math

import pytest
import torch

from grpo_pipeline.core.kl import categorical_kl, k1, k2, k3

F64 = torch.float64
INF = math.inf


def test_golden_estimators():
    p, q = torch.tensor(math.log(0.5), dtype=F64), torch.tensor(math.log(0.25), dtype=F64)
    assert float(k1(p, q)) == pytest.approx(math.log(2), abs=1e-15)
    assert float(k2(p, q)) == pytest.approx(math.log(2) ** 2 / 2, abs=1e-15)
    # q / p = 1/2:  0.5 - log(0.5) - 1 = log 2 - 0.5
    assert float(k3(p, q)) == pytest.approx(math.log(2) - 0.5, abs=1e-15)


def test_k1_and_k3_are_unbiased_under_the_first_policy_and_k3_the_other_way_round_is_not():
    log_p = torch.tensor([0.7, 0.2, 0.1], dtype=F64).log()
    log_q = torch.tensor([0.2, 0.3, 0.5], dtype=F64).log()
    exact = float((log_p.exp() * (log_p - log_q)).sum())
    for estimator in (k1, k3):
        assert float((log_p.exp() * estimator(log_p, log_q)).sum()) == pytest.approx(exact, abs=1e-14)
    assert float((log_p.exp() * k3(log_q, log_p)).sum()) != pytest.approx(exact, abs=0.1)


def test_k3_is_never_negative():
    difference = torch.linspace(-20, 20, 2001)
    assert bool((k3(torch.zeros_like(difference), difference) >= 0).all())


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


def test_categorical_kl_gradient_by_finite_differences():
    allowed = torch.tensor([[True, True, False, True], [True, True, True, True]])
    log_q = torch.randn(2, 4, dtype=F64).masked_fill(~allowed, -INF).log_softmax(-1)

    def kl(logits):
        return categorical_kl(logits.masked_fill(~allowed, -INF).log_softmax(-1), log_q, allowed)

    assert torch.autograd.gradcheck(kl, torch.randn(2, 4, dtype=F64, requires_grad=True))
