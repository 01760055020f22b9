"""The k largest: equal numbers are taken in their order, whatever the device."""

import torch

from grpo_pipeline.core.ranking import first_largest


def test_equal_numbers_are_taken_in_their_order() -> None:
    x = torch.zeros(2, 400)
    x[0, 399] = x[0, 7] = 1.0
    x[1, 50:60] = 2.0
    values, indices = first_largest(x, 4)
    assert indices.tolist() == [[7, 399, 0, 1], [50, 51, 52, 53]]
    assert values.tolist() == [[1.0, 1.0, 0.0, 0.0], [2.0] * 4]


def test_values_are_those_of_topk_and_carry_the_gradient() -> None:
    x = torch.randn(3, 2, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    values, indices = first_largest(x, 5)
    assert torch.equal(values, x.topk(5).values)
    assert torch.equal(values, x.gather(-1, indices))
    (gradient,) = torch.autograd.grad(values.sum(), x)
    assert torch.equal(gradient, torch.zeros_like(x).scatter(-1, indices, 1.0))
