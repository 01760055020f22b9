"""Cut the values of P prompts into micro-batches, and put them together again.

A value is a frozen dataclass, a mapping, a tensor whose first axis is the prompts, or a ``PerPrompt``; what holds none of them
(None, numbers, text) belongs to all prompts. The functions look no further, so that a task's own batches and contexts may pass
through them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class PerPrompt(tuple[Any, ...]):
    """One value of each prompt that is no tensor, such as its texts; cut and joined as the first axis of a tensor is."""

    __slots__ = ()


def count_prompts(value: Any) -> int:
    """Return P, the first axis of every tensor in the value.

    Raises:
        ValueError: if there is no tensor, or two disagree.
    """
    sizes = {len(tensor) if tensor.ndim else 0 for tensor in _tensors(value)}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"every tensor of {type(value).__name__} must have the prompts as its first axis to be cut into micro-batches, got "
            f"the sizes {sorted(sizes)}; store what is shared by the prompts elsewhere, or set training.micro_batch_size: null"
        )
    return int(sizes.pop())


def bounds(prompts: int, size: int) -> list[tuple[int, int]]:
    """Return (first, one past the last) prompt of each micro-batch; the last one may be smaller."""
    return [(start, min(start + size, prompts)) for start in range(0, prompts, size)]


def take_prompts(value: Any, start: int, stop: int) -> Any:
    """Return the same value for the prompts start, ..., stop - 1; tensors are views."""
    if isinstance(value, Tensor):
        return value[start:stop]
    if isinstance(value, PerPrompt):
        return PerPrompt(value[start:stop])
    if isinstance(value, Mapping):
        return {name: take_prompts(entry, start, stop) for name, entry in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{f.name: take_prompts(getattr(value, f.name), start, stop) for f in fields(value)},
        )
    return value


def join_prompts(parts: Sequence[Any]) -> Any:
    """Return the value of all prompts: tensors and ``PerPrompt`` one after the other, everything else from the first part."""
    first = parts[0]
    if isinstance(first, PerPrompt):
        return PerPrompt(entry for part in parts for entry in part)
    if isinstance(first, Tensor):
        return torch.cat(list(parts)) if len(parts) > 1 else first
    if isinstance(first, Mapping):
        return {name: join_prompts([part[name] for part in parts]) for name in first}
    if is_dataclass(first) and not isinstance(first, type):
        return replace(
            first,
            **{f.name: join_prompts([getattr(p, f.name) for p in parts]) for f in fields(first)},
        )
    return first


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _tensors(entry)
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from _tensors(getattr(value, f.name))


# Compute something with a network and keep nothing of it between forward and backward but the result.
#
# ``torch.utils.checkpoint`` (without re-entry) frees the tensors of the forward pass, but keeps a node for every operation
# until the backward pass, so that a loop over many checkpoints still grows with their number. Here the forward pass has no
# graph at all, and the loop keeps one node for each call. The price is the same: a second forward.


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
