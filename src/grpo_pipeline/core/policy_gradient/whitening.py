"""Whiten values: subtract their mean and divide by their deviation."""

import math
from typing import Literal

import torch
from torch import Tensor

from grpo_pipeline.core.policy_gradient.spread import (
    Std,
    check_statistics,
    deviation,
    find_ties,
    mean_of_scored,
)

Scope = Literal["group", "batch"]
# Spread, absolute and relative, below which the values of a scope are rounding and nothing else.
WHITEN_TOLERANCE = 1e-12


def whiten(
    values: Tensor, is_valid: Tensor, *, scope: Scope, eps: float, std: Std = "sample"
) -> Tensor:
    """Subtract the mean and divide by the standard deviation, over valid entries of one scope.

        (x - mean_scope) / (std_scope + eps),   exactly 0 where not valid

    A scope with a single valid entry, or whose valid entries agree up to rounding (a spread of 1e-12, absolute or relative, or
    4 ulp of their type), is exactly 0.

    Args:
        values: [P, ...], P prompts; entries that are not valid are not read and may be NaN.
        is_valid: bool, the same shape, True where an entry counts.
        scope: "group" takes mean and deviation over everything of one prompt, "batch" over everything given.
        eps: added to the standard deviation, in units of the values.
        std: "sample" divides by n - 1, "population" by n.

    Returns:
        float64, the same shape, detached.

    Raises:
        ValueError: for a wrong shape or name, a negative eps, or a valid entry that is not finite.
    """
    if scope not in ("group", "batch"):
        raise ValueError(
            f"whitening scope must be 'group' or 'batch', got {scope!r}; correct the parameter"
        )
    check_statistics(std, eps, 0.0)
    if (
        values.ndim < 2
        or not values.is_floating_point()
        or is_valid.dtype != torch.bool
        or is_valid.shape != values.shape
    ):
        raise ValueError(
            "floating-point values and bool is_valid must share one shape [P, ...], got "
            f"{values.dtype} {list(values.shape)} and {is_valid.dtype} {list(is_valid.shape)}; give one flag per value"
        )
    # Padding may be NaN; a NaN that counts would spread over its whole scope.
    is_bad = is_valid & ~values.isfinite()
    if bool(is_bad.any()):
        place = is_bad.nonzero()[0].tolist()
        raise ValueError(
            f"values must be finite where valid, got {float(values[tuple(place)])} at {place}; mask or correct it"
        )
    return standard_scores(values, is_valid, scope=scope, std=std, eps=eps)


def standard_scores(
    values: Tensor, is_valid: Tensor, *, scope: Scope, std: Std, eps: float
) -> Tensor:
    """Return what ``whiten`` does, without its checks."""
    rows = len(values) if scope == "group" else 1
    mask = is_valid.reshape(rows, -1)  # [P, n] by group, [1, n] over the batch
    # Unread entries become NaN, which is how the statistics below know them.
    x = values.detach().masked_fill(~is_valid, math.nan).reshape(rows, -1)
    is_silent = find_ties(x, mask, WHITEN_TOLERANCE)[:, None] | ~mask
    centred = x.double() - mean_of_scored(x.double(), mask)
    whitened = centred / (deviation(x.double(), mask, std=std, dim=1) + eps)
    return whitened.masked_fill(is_silent, 0.0).reshape(values.shape)
