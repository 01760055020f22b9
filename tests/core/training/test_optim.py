import math

import pytest
import torch
from torch import nn

from grpo_pipeline.core.training.optim import (
    NonFiniteGradientError,
    accumulate,
    advance,
    apply_update,
    build_optimizer,
    clear_gradients,
    parameter_groups,
    step,
)
from grpo_pipeline.core.training.state import TrainState


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.b = nn.Parameter(torch.tensor([3.0]))


def build(lr=0.1, **options):
    net = Two()
    optimizer = build_optimizer({"a": ([net.a], lr), "b": ([net.b], 10 * lr)}, **options)
    return TrainState(net, optimizer, None, 4, 1, 0)


def sgd(net, lr=1.0):
    """Plain SGD shows the clipped gradient itself; AdamW would normalise it away."""
    groups = [{"params": [net.a], "name": "a"}, {"params": [net.b], "name": "b", "lr": 2 * lr}]
    return TrainState(net, torch.optim.SGD(groups, lr=lr), None, 0, 0, 0)


def loss_of(net):
    return 3 * net.a[0] + 4 * net.a[1] + 12 * net.b[0]  # gradients (3, 4 | 12): norms 5, 12, total 13


@pytest.mark.parametrize("fused", [True, False])
def test_update_agrees_with_a_plain_adamw_step(fused):
    state, net = build(weight_decay=0.1, betas=(0.8, 0.9)), Two()
    groups = [{"params": [net.a], "lr": 0.1}, {"params": [net.b], "lr": 1.0}]
    plain = torch.optim.AdamW(groups, weight_decay=0.1, betas=(0.8, 0.9), fused=fused)
    for _ in range(3):
        state, _ = apply_update(state, loss_of(state.policy) ** 2, max_grad_norm=None)
        plain.zero_grad()
        (loss_of(net) ** 2).backward()
        plain.step()
    for name, parameter in state.policy.named_parameters():
        # The fused kernel rounds differently from the loop over parameters: a few ulp of float32 (1.2e-7) after three steps.
        torch.testing.assert_close(parameter, net.get_parameter(name), rtol=0 if fused else 2e-6, atol=0)
    # Fused where it can be.
    assert state.optimizer.defaults["fused"] is True
    mixed = {"real": ([net.a], 0.1), "complex": ([nn.Parameter(torch.ones(2, dtype=torch.cfloat))], 0.1)}
    assert build_optimizer(mixed).defaults["fused"] is None


@pytest.mark.parametrize(
    ("clip", "max_norm", "moved_a", "moved_b"),
    [
        ("per_group", 1.0, [0.6, 0.8], [1.0]),  # each group to norm 1
        ("joint", 1.0, [3 / 13, 4 / 13], [12 / 13]),  # all by 1 / 13
        ("per_group", 6.0, [3.0, 4.0], [6.0]),  # only b is too long
        ("per_group", 11.0, [3.0, 4.0], [11.0]),  # by little
        ("per_group", 12.0, [3.0, 4.0], [12.0]),  # exactly as long as it may be
        ("joint", 100.0, [3.0, 4.0], [12.0]),
        ("per_group", None, [3.0, 4.0], [12.0]),
    ],
)
def test_clipping_scales_one_step_alone_and_metrics_are_norms_before_it(clip, max_norm, moved_a, moved_b):
    net = Two()
    state = sgd(net, lr=0.5)
    net.a.grad = torch.tensor([100.0, 100.0])  # of before: it does not add up
    same, metrics = apply_update(state, loss_of(net), max_grad_norm=max_norm, clip=clip, learning_rate_scale=0.5)
    assert same is state
    assert (torch.tensor([1.0, 2.0]) - net.a.detach()).tolist() == pytest.approx([x / 4 for x in moved_a], rel=1e-5)
    assert (3.0 - net.b.detach()).tolist() == pytest.approx([x / 2 for x in moved_b], rel=1e-5)
    rates = {"lr": 0.5, "group_lr/a": 0.25, "group_lr/b": 0.5}
    assert metrics == {"grad_norm/total": 13.0, "group_grad_norm/total/a": 5.0, "group_grad_norm/total/b": 12.0} | rates
    assert [group["lr"] for group in state.optimizer.param_groups] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        *((lambda net, bad=bad: net.a.sum() + bad * net.b.sum(), NonFiniteGradientError,
           "gradient of parameter 'b' must be finite, .* at step 4") for bad in (math.nan, math.inf)),
        (lambda net: 3e38 * net.a.sum(), NonFiniteGradientError, "norm of the gradient must be finite, got inf"),
        (lambda net: torch.tensor(1.0), ValueError, "got none at step 4: it has no graph; find the detach or the no_grad"),
        (lambda net: torch.ones((), requires_grad=True) * 2, ValueError, "got none at step 4; find the detach"),
        (lambda net: net.a * 2, ValueError, r"the loss must be a scalar, got shape \[2\] at step 4; reduce it"),
    ],
)  # fmt: skip
def test_a_loss_that_teaches_nothing_stops_before_weights_and_moments_move(loss, error, message):
    state = build()
    apply_update(state, loss_of(state.policy), max_grad_norm=None)

    def held():
        return [*state.policy.parameters(), *(v for entry in state.optimizer.state.values() for v in entry.values())]

    before = [tensor.detach().clone() for tensor in held()]
    with pytest.raises(error, match=message):
        apply_update(state, loss(state.policy), max_grad_norm=1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, held(), strict=True))
    assert (state.policy.a.grad, state.policy.b.grad) == (None, None)


@pytest.mark.parametrize("sizes", [[12], [6, 6], [1, 7, 4], [1] * 12])
@pytest.mark.parametrize("clip", ["joint", "per_group"])
def test_micro_batches_make_the_update_of_the_whole_batch(sizes, clip):
    x, y = torch.randn(12, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).split([2, 1], dim=1)

    def state():
        net = Two().double()
        groups = {"a": ([net.a], 0.1), "b": ([net.b], 0.01)}
        return TrainState(net, build_optimizer(groups, weight_decay=0.1), None, 0, 0, 0)

    def loss(net, rows):
        return ((x[rows] @ net.a[:, None]).tanh() * net.b - y[rows]).square().sum() / 12

    whole, split, names = state(), state(), {"max_grad_norm": 0.05, "clip": clip, "learning_rate_scale": 0.7}
    for _ in range(4):
        _, want = apply_update(whole, loss(whole.policy, torch.arange(12)), **names)
        clear_gradients(split)
        for rows in torch.arange(12).split(sizes):
            accumulate(split, loss(split.policy, rows))
        assert step(split, **names) == pytest.approx(want, rel=1e-12)
        assert want["grad_norm/total"] > 0.05  # the clip was at work
    for name, parameter in whole.policy.named_parameters():
        torch.testing.assert_close(split.policy.get_parameter(name), parameter, rtol=0, atol=1e-12)


def test_accumulate_moves_no_weight_step_starts_anew_and_advance_counts():
    net = Two()
    state = sgd(net)
    accumulate(state, net.a.sum())
    accumulate(state, 2 * net.a.sum())
    assert net.a.tolist() == [1.0, 2.0]
    metrics = step(state, max_grad_norm=None)
    assert net.a.tolist() == [-2.0, -1.0]  # 1 + 2 from each
    assert metrics["grad_norm/total"] == pytest.approx(math.sqrt(18))
    assert (net.a.grad, net.b.grad) == (None, None)
    with pytest.raises(ValueError, match="must depend on a trained parameter, got none at step 0"):
        step(state, max_grad_norm=None)
    accumulate(state, net.a.sum())
    step(state, max_grad_norm=None)
    assert net.a.tolist() == [-3.0, -2.0]
    begun = build()
    moved = (advance(begun), advance(begun, epoch=2), advance(begun, epoch=0), begun)
    assert [(s.step, s.epoch) for s in moved] == [(5, 1), (5, 2), (5, 0), (4, 1)]


def test_frozen_parameters_are_left_out_and_groups_keep_their_names():
    net = Two()
    optimizer = build_optimizer({"x": ([net.a, nn.Parameter(torch.ones(1), requires_grad=False)], 0.1), "y": ([net.b], 0.2)})
    assert {name: [id(p) for p in ps] for name, ps in parameter_groups(optimizer).items()} == {"x": [id(net.a)], "y": [id(net.b)]}
    with pytest.raises(ValueError, match="group 'x' must hold a trainable parameter"):
        build_optimizer({"x": ([nn.Parameter(torch.ones(1), requires_grad=False)], 0.1)})
    with pytest.raises(ValueError, match="one parameter in 'x' and 'y'"):
        build_optimizer({"x": ([net.a], 0.1), "y": ([net.b, net.a], 0.1)})
