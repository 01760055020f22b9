"""Measure how far the scored rewards of a group lie apart: ties, mean and deviation."""

import math
from typing import Literal

import torch
from torch import Tensor

Std = Literal["sample", "population"]


def find_ties(rewards: Tensor, is_scored: Tensor, tolerance: float) -> Tensor:
    """Find groups whose scored rewards agree up to rounding of their own dtype; a group without any score is no tie."""
    r = rewards.double()
    infinity = float("inf")
    low = r.masked_fill(~is_scored, infinity).amin(dim=1)  # [P]
    high = r.masked_fill(~is_scored, -infinity).amax(dim=1)  # [P]
    ulps = 4 * torch.finfo(rewards.dtype).eps if rewards.is_floating_point() else 0.0
    size = torch.maximum(low.abs(), high.abs())
    return (high - low <= tolerance + max(tolerance, ulps) * size) & is_scored.any(dim=1)


def mean_of_scored(r: Tensor, is_scored: Tensor) -> Tensor:
    """Return the mean of the scored samples of each group, [P, 1]; 0 where none is scored."""
    return r.nansum(dim=1, keepdim=True) / is_scored.sum(dim=1, keepdim=True).clamp(min=1)


def deviation(r: Tensor, is_scored: Tensor, *, std: Std, dim: int) -> Tensor:
    """Return the standard deviation of the scored samples, [P, 1] along a group, [1] over the batch."""
    n = is_scored.sum(dim=dim, keepdim=True)  # [P, 1] along a group, [1] over the batch
    mean = r.nansum(dim=dim, keepdim=True) / n.clamp(min=1)
    squares = (r - mean).masked_fill(~is_scored, 0.0).square().sum(dim=dim, keepdim=True)
    return (squares / (n - int(std == "sample")).clamp(min=1)).sqrt()


def check_statistics(std: Std, eps: float, tie_tolerance: float) -> None:
    """Refuse an unknown deviation, and a negative or infinite eps or tolerance."""
    if std not in ("sample", "population"):
        raise ValueError(
            f"std must be 'sample' or 'population', got {std!r}; correct the parameter"
        )
    for name, value in (("eps", eps), ("tie_tolerance", tie_tolerance)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be finite and >= 0, got {value}; correct the parameter")
