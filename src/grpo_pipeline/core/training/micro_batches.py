"""Cut the values of P prompts into micro-batches, and put them together again.

A value is a frozen dataclass, a mapping, a tensor whose first axis is the prompts, or a ``PerPrompt``; what holds none of them
(None, numbers, text) belongs to all prompts. The functions look no further, so that a task's own batches and contexts may pass
through them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


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
