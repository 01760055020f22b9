"""Compute something with a network and keep nothing of it between forward and backward but the result.

``torch.utils.checkpoint`` (without re-entry) frees the tensors of the forward pass, but keeps a node for every operation
until the backward pass, so that a loop over many checkpoints still grows with their number. Here the forward pass has no
graph at all, and the loop keeps one node for each call. The price is the same: a second forward.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def recomputed(compute: Callable[[], Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """Return ``compute()``, whose graph is made in the backward pass and thrown away there.

    The backward pass calls ``compute`` again, in the precision (autocast) of the first call, and gives the parameters the
    gradient that the graph of that call would have given. It can be walked through more than once (``retain_graph``), not
    differentiated itself.

    Args:
        compute: takes nothing at random, and gives the same numbers whenever the parameters are the same. What else it uses gets
            no gradient.
        parameters: every tensor it uses that is to get a gradient, [any shape] each. Those that need none are left out. At least
            one must be on the device that computes.

    Returns:
        What ``compute`` returned, with graph if gradients are on and a parameter needs one.

    Raises:
        RuntimeError: in the backward pass, if a parameter was changed in place since (torch's own check).
    """
    wanted = [p for p in parameters if p.requires_grad]
    if not wanted or not torch.is_grad_enabled():
        return compute()
    out: Tensor = _Recomputed.apply(compute, *wanted)  # type: ignore[no-untyped-call]
    return out


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compute: Callable[[], Tensor], *parameters: Tensor) -> Tensor:
        # What opens the present autocast state again, on or off.
        device = parameters[0].device.type
        is_on, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        # No cache: a cast of a weight that was made here must not be used after the backward pass.
        ctx.compute, ctx.precision = (
            compute,
            (lambda: torch.autocast(device, enabled=is_on, dtype=dtype, cache_enabled=False)),
        )
        # No room: they live anyway; torch notices if they change in place.
        ctx.save_for_backward(*parameters)
        return compute()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        parameters = ctx.saved_tensors
        with torch.enable_grad(), ctx.precision():
            again = ctx.compute()
        return (None, *torch.autograd.grad(again, parameters, grad, allow_unused=True))
