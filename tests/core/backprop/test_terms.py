import math

import pytest
import torch

from grpo_pipeline.core.backprop import terms as terms_of

F64 = torch.float64


def example(seed=0, shape=(3, 5)):
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(shape, dtype=F64, generator=generator) - 2
    new = old + 0.3 * torch.randn(shape, dtype=F64, generator=generator)
    advantages = torch.randn(shape, dtype=F64, generator=generator)
    is_valid = torch.rand(shape, generator=generator) < 0.7
    return new, old, advantages, is_valid


def test_one_advantage_per_row_stands_for_all_its_decisions():
    new, old, advantages, is_valid = example()
    short = terms_of.policy(new, old, advantages[:, 0], is_valid, algorithm="grpo")
    assert torch.equal(short, terms_of.policy(new, old, advantages[:, :1].expand(3, 5), is_valid, algorithm="grpo"))


def test_value_leaves_out_padding():
    values = torch.tensor([[1.0, 2.0, math.nan]], dtype=F64, requires_grad=True)
    returns = torch.tensor([[2.0, 5.0, math.nan]], dtype=F64)
    is_valid = torch.tensor([[True, True, False]])
    loss = terms_of.value(values, None, returns, is_valid, clip=None)
    assert float(loss.detach()) == pytest.approx(0.5 * (1**2 + 3**2) / 2)  # 2.5
    loss.backward()
    assert values.grad.tolist() == [[-0.5, -1.5, 0.0]]  # (V - R) / 2


def test_one_value_per_row_counts_rows_with_a_valid_decision():
    values, returns = torch.tensor([1.0, 2.0, 9.0], dtype=F64), torch.zeros(3, dtype=F64)
    is_valid = torch.tensor([[True, True], [True, False], [False, False]])
    assert float(terms_of.value(values, None, returns, is_valid, clip=None)) == pytest.approx(0.5 * (1 + 4) / 2)


def test_optional_terms_are_means_over_valid_decisions_and_scalars_pass():
    is_valid = torch.tensor([[True, False], [True, True]])
    x = torch.tensor([[1.0, math.inf], [2.0, 6.0]], dtype=F64)
    found = terms_of.optional(x, x / 2, is_valid)
    assert {name: float(term) for name, term in found.items()} == {"kl": 3.0, "entropy": -1.5}
    assert terms_of.optional(None, None, is_valid) == {}
    scalar = torch.tensor(0.25)
    assert terms_of.optional(scalar, None, is_valid) == {"kl": scalar}
