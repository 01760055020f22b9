"""Move between prompts [P, ...], groups [P, G, ...] and rows [N, ...] with N = P * G and row n = p * G + g."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor


def replicate(x: Tensor, group_size: int) -> Tensor:
    """Repeat each prompt for its samples, [P, ...] -> [P, G, ...], as an expanded view that copies nothing.

    Do not write into the result: its G samples share memory.
    """
    _check_group_size(group_size)
    return x.unsqueeze(1).expand(x.shape[0], group_size, *x.shape[1:])


def to_rows(x: Tensor) -> Tensor:
    """Flatten groups to rows, [P, G, ...] -> [P * G, ...]; copies only if ``x`` is an expanded view."""
    if x.ndim < 2:
        raise ValueError(
            f"groups must have at least the two axes [P, G], got shape {tuple(x.shape)}; call replicate first"
        )
    return x.flatten(0, 1)


def to_groups(x: Tensor, group_size: int) -> Tensor:
    """Split rows into groups, [P * G, ...] -> [P, G, ...], a view where the memory allows.

    Raises:
        ValueError: if the number of rows is not a multiple of the group size.
    """
    _check_group_size(group_size)
    if x.shape[0] % group_size:
        raise ValueError(
            f"the number of rows must be a multiple of group_size {group_size}, got {x.shape[0]}; pass whole groups"
        )
    return x.reshape(x.shape[0] // group_size, group_size, *x.shape[1:])


def replicate_tree(tree: Any, group_size: int) -> Any:
    """Apply ``replicate`` to every tensor of a dataclass, mapping, list or tuple; other leaves stay as they are."""
    return map_tensors(tree, lambda x: replicate(x, group_size))


def map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a dataclass, mapping, list or tuple; other leaves stay as they are."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: map_tensors(value, change) for key, value in tree.items()}
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(
            tree,
            **{f.name: map_tensors(getattr(tree, f.name), change) for f in fields(tree) if f.init},
        )
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(value, change) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tensors(value, change) for value in tree)
    return tree


def require_shape(name: str, x: Tensor, shape: Sequence[int], remedy: str) -> None:
    """Refuse a tensor of another shape.

    Raises:
        ValueError: with both shapes and the remedy.
    """
    if list(x.shape) != list(shape):
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(x.shape)}; {remedy}")


def check_decisions(is_valid: Tensor, **logprobs: Tensor) -> None:
    """Refuse log-probabilities of decisions, by their names, that do not all have the shape [P, G, L] of the mask.

    Raises:
        ValueError: with every shape.
    """
    shapes = {name: list(x.shape) for name, x in {**logprobs, "is_valid": is_valid}.items()}
    if is_valid.ndim != 3 or any(shape != shapes["is_valid"] for shape in shapes.values()):
        raise ValueError(
            f"{', '.join(logprobs)} and is_valid must share one shape [P, G, L], got {list(shapes.values())}; pass those of the "
            "stored actions"
        )


def _check_group_size(group_size: int) -> None:
    if group_size < 1:
        raise ValueError(
            f"group_size must be at least 1, got {group_size}; set it to the number of samples per prompt"
        )
