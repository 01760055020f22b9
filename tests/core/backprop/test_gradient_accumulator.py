import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from grpo_pipeline.core.backprop.gradient_accumulator import GradientAccumulator
from grpo_pipeline.core.policy_gradient.hybrid_loss import NonFiniteLossError
from grpo_pipeline.core.training.optim import NonFiniteGradientError

F64 = torch.float64


def build(max_grad_norm=None, optimizer=torch.optim.SGD):
    torch.manual_seed(0)
    model = nn.Linear(3, 2, dtype=F64)
    groups = [{"params": [parameter]} for parameter in model.parameters()]
    return model, GradientAccumulator(model, optimizer(groups, lr=1.0), max_grad_norm=max_grad_norm)


def data(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, dtype=F64, generator=generator), torch.randn(n, 2, dtype=F64, generator=generator)


def loss_of(model, x, y):
    """A mean over rows."""
    return (model(x) - y).square().sum(dim=1).mean()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def moved(model):
    """The gradient of the step, read off the weights: at a learning rate of 1 it is what they have lost."""
    return weights(build()[0]) - weights(model)


def gradient_of(loss_function):
    twin = build()[0]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss_function(twin), list(twin.parameters()))])


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6), seed=st.integers(0, 10), limit=st.sampled_from([None, 0.5]))
@settings(max_examples=25)
def test_any_split_of_a_batch_gives_the_gradient_of_the_whole_clipped_once(sizes, seed, limit):
    x, y = data(sum(sizes), seed)
    model, accumulator = build(limit)
    before = weights(model)
    model.weight.grad = torch.full_like(model.weight, 1e6)  # of before: to be forgotten
    for part_x, part_y in zip(x.split(sizes), y.split(sizes), strict=True):
        accumulator.add(loss_of(model, part_x, part_y), len(part_x) / 16)  # their sum may be below 1
        assert torch.equal(weights(model), before)
        assert (accumulator.is_pending, accumulator.updates) == (True, 0)
    report = accumulator.step()
    expected = gradient_of(lambda twin: loss_of(twin, x, y))
    scale = 1.0 if limit is None else min(1.0, limit / float(expected.norm()))
    assert torch.allclose(moved(model), scale * expected, rtol=1e-5 if limit else 0, atol=1e-12)
    whole = {"grad_norm": float(expected.norm()), "loss": float(loss_of(build()[0], x, y).detach())}
    assert report == pytest.approx(whole, abs=1e-12)
    assert (accumulator.is_pending, accumulator.updates) == (False, 1)
    accumulator.add(0.0 * loss_of(model, x, y), 4)
    assert accumulator.step()["grad_norm"] == 0.0


def test_without_denominators_each_part_counts_alike():
    """A graph that is retained can be walked again, another one cannot."""
    x, y = data(8)
    model, accumulator = build()
    first = loss_of(model, x[:2], y[:2])
    accumulator.add(first, retain_graph=True)
    accumulator.add(loss_of(model, x[2:], y[2:]))
    accumulator.add(first)
    accumulator.step()
    alike = gradient_of(lambda twin: (2 * loss_of(twin, x[:2], y[:2]) + loss_of(twin, x[2:], y[2:])) / 3)
    assert torch.allclose(moved(model), alike, rtol=0, atol=1e-12)
    accumulator.add(again := loss_of(model, x, y), 4)
    with pytest.raises(RuntimeError, match="second time"):
        accumulator.add(again, 4)


def test_what_is_not_finite_touches_neither_weight_nor_optimiser():
    model, accumulator = build(1.0, torch.optim.Adam)
    x, y = data(4)
    accumulator.add(loss_of(model, x, y), 4)
    accumulator.step()
    optimizer = accumulator._state.optimizer
    before, state = weights(model), copy.deepcopy(optimizer.state_dict())
    accumulator.add(loss_of(model, x, y), 4)
    with pytest.raises(NonFiniteLossError, match=r"loss must be finite, got nan at update 1; the weights are unchanged"):
        accumulator.add(loss_of(model, x, y) * math.nan, 4)
    assert not accumulator.is_pending
    assert model.weight.grad is None
    # The square root of 0 has the value 0 and an infinite slope.
    accumulator.add((model.weight * 0.0).sum().sqrt(), 1)
    sentence = r"gradient of parameter 'weight' must be finite, got a NaN or infinite entry at step 1"
    with pytest.raises(NonFiniteGradientError, match=sentence):
        accumulator.step()
    assert torch.equal(weights(model), before)
    assert torch.equal(state["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])
    assert not accumulator.is_pending


def test_refuses_what_cannot_be_learned_from():
    model, accumulator = build()
    loss = loss_of(model, *data(4))
    with pytest.raises(ValueError, match=r"a step must follow a loss, got nothing accumulated"):
        accumulator.step()
    for wrong, got in ((loss.detach(), "one without a graph"), (loss[None], r"shape \[1\]")):
        with pytest.raises(ValueError, match=f"must be a scalar that depends on the parameters, got {got}"):
            accumulator.add(wrong)
    for denominator in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=rf"denominator must be positive and finite, got {denominator}"):
            accumulator.add(loss, denominator)
    assert not accumulator.is_pending
    accumulator.add(nn.Parameter(torch.ones(())) * 2.0)
    with pytest.raises(ValueError, match=r"the loss must depend on a trained parameter, got none at step 0"):
        accumulator.step()
