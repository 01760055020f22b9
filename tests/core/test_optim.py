import math

import pytest
import torch
from torch import nn

from grpo_pipeline.core.optim import NonFiniteGradientError, advance, apply_update, build_optimizer, parameter_groups
from grpo_pipeline.core.types import TrainState


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
    groups = [{"params": [net.a], "name": "a"}, {"params": [net.b], "name": "b"}]
    return TrainState(net, torch.optim.SGD(groups, lr=lr), None, 0, 0, 0)


def loss_of(net):
    return 3 * net.a[0] + 4 * net.a[1] + 12 * net.b[0]  # gradients (3, 4 | 12): norms 5, 12, total 13


def test_update_agrees_with_a_plain_adamw_step():
    state, other = build(weight_decay=0.1, betas=(0.8, 0.9)), Two()
    plain = torch.optim.AdamW(
        [{"params": [other.a], "lr": 0.1}, {"params": [other.b], "lr": 1.0}], weight_decay=0.1, betas=(0.8, 0.9)
    )
    for _ in range(3):
        state, _ = apply_update(state, loss_of(state.policy) ** 2, max_grad_norm=None)
        plain.zero_grad()
        (loss_of(other) ** 2).backward()
        plain.step()
    assert torch.equal(state.policy.a, other.a)
    assert torch.equal(state.policy.b, other.b)


def test_metrics_are_norms_before_clipping():
    state = build()
    same, metrics = apply_update(state, loss_of(state.policy), max_grad_norm=1.0)
    assert metrics == {
        "grad_norm/total": 13.0,
        "group_grad_norm/total/a": 5.0,
        "group_grad_norm/total/b": 12.0,
        "lr": 1.0,
        "group_lr/a": 0.1,
        "group_lr/b": 1.0,
    }
    assert same is state


@pytest.mark.parametrize(
    ("clip", "max_norm", "moved_a", "moved_b"),
    [
        ("per_group", 1.0, [0.6, 0.8], [1.0]),  # each group to norm 1
        ("joint", 1.0, [3 / 13, 4 / 13], [12 / 13]),  # all by 1 / 13
        ("per_group", 6.0, [3.0, 4.0], [6.0]),  # only b is too long
        ("joint", 100.0, [3.0, 4.0], [12.0]),
        ("per_group", None, [3.0, 4.0], [12.0]),
    ],
)
def test_clipping(clip, max_norm, moved_a, moved_b):
    net = Two()
    before = [net.a.detach().clone(), net.b.detach().clone()]
    apply_update(sgd(net), loss_of(net), max_grad_norm=max_norm, clip=clip)
    assert (before[0] - net.a.detach()).tolist() == pytest.approx(moved_a, rel=1e-5)
    assert (before[1] - net.b.detach()).tolist() == pytest.approx(moved_b, rel=1e-5)


def test_a_large_gradient_in_one_group_does_not_scale_another_down():
    moved = {}
    for clip in ("per_group", "joint"):
        net = Two()
        apply_update(sgd(net), net.a.sum() + 1e6 * net.b.sum(), max_grad_norm=2.0, clip=clip)
        moved[clip] = float(torch.tensor([1.0, 2.0])[0] - net.a.detach()[0])
    assert moved["per_group"] == pytest.approx(1.0, abs=1e-6)
    assert moved["joint"] == pytest.approx(2e-6, abs=1e-6)


def test_old_gradients_do_not_add_up():
    net = Two()
    net.a.grad = torch.tensor([100.0, 100.0])
    state = sgd(net)
    apply_update(state, net.a.sum(), max_grad_norm=None)
    assert net.a.tolist() == [0.0, 1.0]


def test_learning_rate_scale_holds_for_one_step_alone():
    net = Two()
    state = sgd(net, lr=0.5)
    _, metrics = apply_update(state, net.a.sum(), max_grad_norm=None, learning_rate_scale=0.5)
    assert net.a.tolist() == [0.75, 1.75]
    assert metrics["lr"] == 0.25
    assert [group["lr"] for group in state.optimizer.param_groups] == [0.5, 0.5]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_stops_before_the_weights_move(bad):
    state = build()
    net = state.policy
    apply_update(state, loss_of(net), max_grad_norm=None)
    weights = [p.detach().clone() for p in net.parameters()]
    moments = [v.clone() for entry in state.optimizer.state.values() for v in entry.values()]
    with pytest.raises(NonFiniteGradientError, match=r"gradient of parameter 'b' must be finite, .* at step 4"):
        apply_update(state, net.a.sum() + bad * net.b.sum(), max_grad_norm=1.0)
    assert all(torch.equal(w, p) for w, p in zip(weights, net.parameters(), strict=True))
    assert all(
        torch.equal(m, v) for m, v in zip(moments, [v for e in state.optimizer.state.values() for v in e.values()], strict=True)
    )
    assert (net.a.grad, net.b.grad) == (None, None)


def test_a_norm_that_overflows_is_said_to_be_one():
    state = build()
    with pytest.raises(NonFiniteGradientError, match="norm of the gradient must be finite, got inf"):
        apply_update(state, 3e38 * state.policy.a.sum(), max_grad_norm=1.0)


@pytest.mark.parametrize("loss", [torch.tensor(1.0), torch.ones((), requires_grad=True) * 2])
def test_refuses_a_loss_that_reaches_no_trained_parameter(loss):
    with pytest.raises(ValueError, match="must depend on a trained parameter, got none at step 4"):
        apply_update(build(), loss, max_grad_norm=1.0)


def test_advance_counts_batches():
    state = build()
    assert (advance(state).step, advance(state).epoch) == (5, 1)
    assert (advance(state, epoch=2).epoch, state.step) == (2, 4)


def test_frozen_parameters_are_left_out_and_groups_keep_their_names():
    net = Two()
    optimizer = build_optimizer({"x": ([net.a, nn.Parameter(torch.ones(1), requires_grad=False)], 0.1), "y": ([net.b], 0.2)})
    assert {name: [id(p) for p in ps] for name, ps in parameter_groups(optimizer).items()} == {"x": [id(net.a)], "y": [id(net.b)]}


def test_build_refuses_empty_and_overlapping_groups():
    net = Two()
    with pytest.raises(ValueError, match="group 'x' must hold a trainable parameter"):
        build_optimizer({"x": ([nn.Parameter(torch.ones(1), requires_grad=False)], 0.1)})
    with pytest.raises(ValueError, match="one parameter in 'x' and 'y'"):
        build_optimizer({"x": ([net.a], 0.1), "y": ([net.b, net.a], 0.1)})
