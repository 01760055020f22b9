import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from grpo_pipeline.core.backprop.terms import GradientAccumulator
from grpo_pipeline.core.policy_gradient.losses import NonFiniteLossError
from grpo_pipeline.core.training.optim import NonFiniteGradientError

F64 = torch.float64


def build(lr=1.0, max_grad_norm=None):
    torch.manual_seed(0)
    model = nn.Linear(3, 2, dtype=F64)
    return model, GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=lr), max_grad_norm=max_grad_norm)


def data(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, dtype=F64, generator=generator), torch.randn(n, 2, dtype=F64, generator=generator)


def loss_of(model, x, y):
    """A mean over rows."""
    return (model(x) - y).square().sum(dim=1).mean()


def moved(model):
    """The gradient of the step, read off the weights: at a learning rate of 1 it is what they have lost."""
    return weights(build()[0]) - weights(model)


def gradient_of(loss_function):
    twin = build()[0]
    loss_function(twin).backward()
    return torch.cat([p.grad.flatten() for p in twin.parameters()])


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6), seed=st.integers(0, 10))
@settings(max_examples=25)
def test_any_split_gives_the_gradient_of_one_large_batch(sizes, seed):
    x, y = data(sum(sizes), seed)
    model, accumulator = build()
    for part_x, part_y in zip(x.split(sizes), y.split(sizes), strict=True):
        accumulator.add(loss_of(model, part_x, part_y), len(part_x))
    report = accumulator.step()
    expected = gradient_of(lambda twin: loss_of(twin, x, y))
    assert torch.allclose(moved(model), expected, rtol=0, atol=1e-12)
    assert report["grad_norm"] == pytest.approx(float(expected.norm()), abs=1e-12)
    assert report["loss"] == pytest.approx(float(loss_of(build()[0], x, y).detach()), abs=1e-12)


def test_without_denominators_each_part_counts_alike():
    x, y = data(8)
    model, accumulator = build()
    for rows in (slice(0, 2), slice(2, 8)):
        accumulator.add(loss_of(model, x[rows], y[rows]))
    accumulator.step()
    alike = gradient_of(lambda twin: 0.5 * loss_of(twin, x[:2], y[:2]) + 0.5 * loss_of(twin, x[2:], y[2:]))
    assert torch.allclose(moved(model), alike, rtol=0, atol=1e-12)
    assert not torch.allclose(moved(model), gradient_of(lambda twin: loss_of(twin, x, y)), atol=1e-3)


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
    model, accumulator = build(max_grad_norm=limit)
    accumulator.add(loss_of(model, x[:3], y[:3]), 3)
    accumulator.add(loss_of(model, x[3:], y[3:]), 3)
    norm = accumulator.step()["grad_norm"]
    assert 0.5 < norm < 1e6
    assert float(moved(model).norm()) == pytest.approx(min(limit, norm), rel=1e-5)


def test_the_norm_is_one_over_all_parameter_groups():
    a, b = nn.Parameter(torch.zeros((), dtype=F64)), nn.Parameter(torch.zeros((), dtype=F64))
    optimizer = torch.optim.SGD([{"params": [a]}, {"params": [b]}], lr=1.0)
    accumulator = GradientAccumulator(nn.ParameterList([a, b]), optimizer, max_grad_norm=1.0)
    accumulator.add(-3.0 * a - 4.0 * b)
    assert accumulator.step()["grad_norm"] == pytest.approx(5.0)  # sqrt(9 + 16)
    assert (float(a.detach()), float(b.detach())) == pytest.approx((0.6, 0.8), rel=1e-5)


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
    accumulator = GradientAccumulator(model, optimizer, max_grad_norm=1.0)
    x, y = data(4)
    accumulator.add(loss_of(model, x, y), 4)
    accumulator.step()
    before, state = weights(model), copy.deepcopy(optimizer.state_dict())
    # The square root of 0 has the value 0 and an infinite slope.
    accumulator.add((model.weight * 0.0).sum().sqrt(), 1)
    with pytest.raises(
        NonFiniteGradientError, match=r"gradient of parameter 'weight' must be finite, got a NaN or infinite entry at step 1"
    ):
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
    with pytest.raises(ValueError, match=r"the loss must depend on a trained parameter, got none at step 0"):
        accumulator.step()


def test_a_retained_graph_can_be_walked_again():
    model, accumulator = build()
    x, y = data(4)
    loss = loss_of(model, x, y)
    accumulator.add(loss, 4, retain_graph=True)
    accumulator.add(loss, 4)
    accumulator.step()
    assert torch.allclose(moved(model), gradient_of(lambda twin: loss_of(twin, x, y)), rtol=0, atol=1e-12)
    accumulator.add(again := loss_of(model, x, y), 4)
    with pytest.raises(RuntimeError, match="second time"):
        accumulator.add(again, 4)
