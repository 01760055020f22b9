from contextlib import nullcontext

import pytest
import torch
from graph_nodes import nodes_behind
from torch import Tensor, nn

from grpo_pipeline.core.training.recomputation import recomputed

X = torch.linspace(-1, 1, 12).view(4, 3)


@pytest.fixture
def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2), nn.LogSoftmax(dim=-1))


def loss_of(out: Tensor) -> Tensor:
    """Weigh every number differently."""
    return (out.double() * torch.arange(1.0, 1 + out.numel(), dtype=torch.float64).view_as(out)).sum()


@pytest.mark.parametrize("half", [False, True])
def test_a_recomputed_call_has_the_gradient_of_the_plain_one_and_keeps_one_node(net: nn.Sequential, half: bool) -> None:
    """A context around the backward pass does not reach what is computed again."""
    weights = list(net.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half, cache_enabled=False):
        plain, ours = net(X), recomputed(lambda: net(X), weights)
    assert torch.equal(plain, ours)
    assert (nodes_behind(ours), nodes_behind(plain) > 2 + len(weights)) == (1 + len(weights), True)
    for around in (torch.autocast("cpu", dtype=torch.bfloat16, enabled=not half), nullcontext()):
        with around:
            wanted, found = (torch.autograd.grad(loss_of(out), weights, retain_graph=True) for out in (plain, ours))
        assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    in_float = torch.autograd.grad(loss_of(net(X)), weights)
    assert torch.equal(in_float[0], found[0]) is not half  # else this test would not see the precision


def test_calls_add_up_and_can_be_walked_through_twice(net: nn.Sequential) -> None:
    weights = list(net.parameters())
    rows = torch.cat([recomputed(lambda part=part: net(part), weights) for part in X.split(1)])
    first, second = (torch.autograd.grad(loss_of(rows), weights, retain_graph=True) for _ in range(2))
    wanted = torch.autograd.grad(loss_of(net(X)), weights)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(first, wanted, strict=True))


def test_what_needs_no_gradient_gets_none(net: nn.Sequential) -> None:
    unused = torch.zeros(2, requires_grad=True)
    net[0].requires_grad_(False)
    weights = [*net.parameters(), unused]
    recomputed(lambda: net(X), weights).sum().backward()
    assert [p.grad is None for p in (unused, net[0].weight, net[2].weight)] == [True, True, False]
    with torch.no_grad():
        assert not recomputed(lambda: net(X), weights).requires_grad
    net.requires_grad_(False)
    assert not recomputed(lambda: net(X), list(net.parameters())).requires_grad


def test_weights_that_changed_before_the_backward_pass_are_noticed(net: nn.Sequential) -> None:
    """Computed again with them, the gradient would be that of another loss."""
    out = recomputed(lambda: net(X), list(net.parameters()))
    with torch.no_grad():
        net[2].bias.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
