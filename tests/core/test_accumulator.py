import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from grpo_pipeline.core.accumulator import GradientAccumulator
from grpo_pipeline.core.losses import NonFiniteLossError
from grpo_pipeline.core.optim import NonFiniteGradientError

F64 = torch.float64


def build(lr=0.1, max_grad_norm=None):
    torch.manual_seed(0)
    model = nn.Linear(3, 2, dtype=F64)
    return model, GradientAccumulator(torch.optim.SGD(model.parameters(), lr=lr), max_grad_norm=max_grad_norm)


def data(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, dtype=F64, generator=generator), torch.randn(n, 2, dtype=F64, generator=generator)


def loss_of(model, x, y):
    """A mean over rows."""
    return (model(x) - y).square().sum(dim=1).mean()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6), seed=st.integers(0, 10))
@settings(max_examples=25, deadline=None)
def test_any_split_gives_the_gradient_of_one_large_batch(sizes, seed):
    x, y = data(sum(sizes), seed)
    large, accumulated = build()[0], build()
    loss = loss_of(large, x, y)
    loss.backward()
    model, accumulator = accumulated
    for part_x, part_y in zip(x.split(sizes), y.split(sizes), strict=True):
        accumulator.add(loss_of(model, part_x, part_y), len(part_x))
    report = accumulator.step()
    for one, other in zip(large.parameters(), model.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=0, atol=1e-12)
        assert torch.allclose(one.detach() - 0.1 * one.grad, other.detach(), rtol=0, atol=1e-12)
    assert report["loss"] == pytest.approx(float(loss.detach()), abs=1e-12)


def test_without_denominators_each_part_counts_alike():
    x, y = data(8)
    model, accumulator = build()
    for rows in (slice(0, 2), slice(2, 8)):
        accumulator.add(loss_of(model, x[rows], y[rows]))
    twin = build()[0]
    (0.5 * loss_of(twin, x[:2], y[:2]) + 0.5 * loss_of(twin, x[2:], y[2:])).backward()
    accumulator.step()
    assert torch.allclose(model.weight.grad, twin.weight.grad, rtol=0, atol=1e-12)
    loss_of(whole := build()[0], x, y).backward()
    assert not torch.allclose(model.weight.grad, whole.weight.grad, atol=1e-3)


def test_no_weight_moves_before_the_step_and_old_gradients_are_cleared():
    x, y = data(4)
    model, accumulator = build()
    before = weights(model)
    model.weight.grad = torch.full_like(model.weight, 1e6)
    accumulator.add(loss_of(model, x, y), 4)
    assert torch.equal(weights(model), before)
    assert accumulator.is_pending
    assert accumulator.step()["grad_norm"] < 1e3
    assert not accumulator.is_pending
    assert accumulator.updates == 1
    accumulator.add(0.0 * loss_of(model, x, y), 4)
    assert accumulator.step()["grad_norm"] == 0.0


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_the_norm_is_clipped_once_after_scaling(limit):
    x, y = data(6)
    model, accumulator = build(lr=1.0, max_grad_norm=limit)
    before = weights(model)
    accumulator.add(loss_of(model, x[:3], y[:3]), 3)
    accumulator.add(loss_of(model, x[3:], y[3:]), 3)
    norm = accumulator.step()["grad_norm"]
    assert 0.5 < norm < 1e6
    assert float((weights(model) - before).norm()) == pytest.approx(min(limit, norm), rel=1e-5)


def test_a_loss_that_is_not_finite_touches_no_weight():
    x, y = data(4)
    model, accumulator = build()
    before = weights(model)
    accumulator.add(loss_of(model, x, y), 4)
    with pytest.raises(NonFiniteLossError, match=r"loss must be finite, got nan at update 0; the weights are unchanged"):
        accumulator.add(loss_of(model, x, y) * math.nan, 4)
    assert not accumulator.is_pending
    assert torch.equal(weights(model), before)
    assert model.weight.grad is None


def test_a_gradient_that_is_not_finite_touches_neither_weight_nor_optimiser():
    model = nn.Linear(3, 2, dtype=F64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    accumulator = GradientAccumulator(optimizer, max_grad_norm=1.0)
    x, y = data(4)
    accumulator.add(loss_of(model, x, y), 4)
    accumulator.step()
    before, state = weights(model), copy.deepcopy(optimizer.state_dict())
    # The square root of 0 has the value 0 and an infinite slope.
    accumulator.add((model.weight * 0.0).sum().sqrt(), 1)
    with pytest.raises(NonFiniteGradientError, match=r"norm of the gradient must be finite, got nan at update 1; the weights"):
        accumulator.step()
    assert torch.equal(weights(model), before)
    assert torch.equal(state["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])
    assert not accumulator.is_pending


def test_refuses_what_cannot_be_learned_from():
    model, accumulator = build()
    loss = loss_of(model, *data(4))
    with pytest.raises(ValueError, match=r"a step must follow a loss, got nothing accumulated"):
        accumulator.step()
    with pytest.raises(ValueError, match=r"must be a scalar that depends on the parameters, got one without a graph"):
        accumulator.add(loss.detach())
    with pytest.raises(ValueError, match=r"must be a scalar that depends on the parameters, got shape \[1\]"):
        accumulator.add(loss[None])
    for denominator in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=rf"denominator must be positive and finite, got {denominator}"):
            accumulator.add(loss, denominator)
    assert not accumulator.is_pending
    accumulator.add(nn.Parameter(torch.ones(())) * 2.0)
    with pytest.raises(ValueError, match=r"must depend on a parameter of the optimiser, got none"):
        accumulator.step()


def test_a_retained_graph_can_be_walked_again():
    model, accumulator = build()
    x, y = data(4)
    loss = loss_of(model, x, y)
    accumulator.add(loss, 4, retain_graph=True)
    accumulator.add(loss, 4)
    twin = build()[0]
    loss_of(twin, x, y).backward()
    accumulator.step()
    assert torch.allclose(model.weight.grad, twin.weight.grad, rtol=0, atol=1e-12)
    accumulator.add(again := loss_of(model, x, y), 4)
    with pytest.raises(RuntimeError, match="second time"):
        accumulator.add(again, 4)
