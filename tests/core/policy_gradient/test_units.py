import math

import pytest
import torch

from grpo_pipeline.core.policy_gradient.losses import UNITS, counted_units, importance_ratio

F64 = torch.float64


def example(seed=0):
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(3, 4, 5, dtype=F64, generator=generator) - 2
    new = old + 0.3 * torch.randn(3, 4, 5, dtype=F64, generator=generator)
    is_valid = torch.rand(3, 4, 5, generator=generator) < 0.7
    is_valid[0, 1] = False
    return new, old, is_valid


@pytest.mark.parametrize("level", UNITS)
def test_ratio_is_exactly_one_at_the_first_update(level):
    new, _, is_valid = example()
    ratio = importance_ratio(new, new.clone(), is_valid, level=level)
    assert torch.equal(ratio, torch.ones_like(ratio))


def test_golden_ratios():
    # Row 0: r = 2, 1/2 * e, (masked 9); row 1: wholly masked.
    log_ratio = torch.tensor([[[math.log(2), 1 - math.log(2), 9.0], [9.0, 9.0, 9.0]]], dtype=F64)
    is_valid = torch.tensor([[[True, True, False], [False, False, False]]])
    ratio = {name: importance_ratio(log_ratio, torch.zeros_like(log_ratio), is_valid, level=name) for name in UNITS}
    assert ratio["decision"].flatten().tolist() == pytest.approx([2.0, math.e / 2, 1, 1, 1, 1])
    assert ratio["joint"].flatten().tolist() == pytest.approx([math.e, 1])  # 2 * e / 2
    assert ratio["sequence"].flatten().tolist() == pytest.approx([math.sqrt(math.e), 1])  # (2 * e / 2) ** (1 / 2)


def test_joint_and_sequence_ratios_are_products_and_geometric_means_of_the_valid_decisions():
    new, old, is_valid = example()
    per_decision = importance_ratio(new, old, is_valid, level="decision")
    product = per_decision.prod(-1, keepdim=True)
    torch.testing.assert_close(importance_ratio(new, old, is_valid, level="joint"), product, atol=1e-12, rtol=0)
    geometric = product ** (1 / is_valid.sum(-1, keepdim=True).clamp(min=1).double())
    torch.testing.assert_close(importance_ratio(new, old, is_valid, level="sequence"), geometric, atol=1e-12, rtol=0)


@pytest.mark.parametrize("level", ["joint", "sequence"])
def test_rows_of_one_decision_have_one_ratio_at_every_level(level):
    new, old, is_valid = (x[:, :, :1] for x in example())
    one = importance_ratio(new, old, is_valid, level="decision")
    torch.testing.assert_close(importance_ratio(new, old, is_valid, level=level), one, atol=0, rtol=0)


@pytest.mark.parametrize("level", UNITS)
def test_masked_decisions_at_minus_infinity_change_nothing(level):
    new, old, is_valid = example()
    holes = [x.masked_fill(~is_valid, -math.inf) for x in (new, old)]
    before, after = UNITS[level](new, old, is_valid), UNITS[level](*holes, is_valid)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("level", UNITS)
def test_gradient_reaches_the_present_policy_only(level):
    new, old, is_valid = example()
    importance_ratio(new.requires_grad_(), old.requires_grad_(), is_valid, level=level).sum().backward()
    assert old.grad is None
    assert bool((new.grad[is_valid] > 0).all())
    assert torch.count_nonzero(new.grad[~is_valid]) == 0


def test_which_units_are_counted():
    is_valid = torch.tensor([[[True, True, False], [False, False, False]]])
    assert counted_units(is_valid, "joint").tolist() == [[[True], [False]]]
    assert torch.equal(counted_units(is_valid, "decision"), is_valid)
    assert torch.equal(counted_units(is_valid, "sequence"), is_valid)


def test_refuses_an_unknown_level():
    with pytest.raises(ValueError, match="ratio_level must be one of decision, joint, sequence, got 'row'"):
        importance_ratio(*example(), level="row")
