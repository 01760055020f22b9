"""Choose the largest of some numbers, the same ones on every device."""

from torch import Tensor


def first_largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Take the k largest of each row, largest first, and the first ones of those that are equal.

    ``Tensor.topk`` promises nothing about equal numbers, and CUDA takes others than the CPU.

    Args:
        x: [..., V] without NaN, V >= k.
        k: how many.

    Returns:
        values [..., k], with the gradient, and int64 indices [..., k].
    """
    ranked = x.sort(dim=-1, descending=True, stable=True)
    return ranked.values[..., :k], ranked.indices[..., :k]
