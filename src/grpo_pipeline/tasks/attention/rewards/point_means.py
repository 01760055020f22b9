"""Average what is measured at the points of a sample."""

from torch import Tensor


def mean_over_points(values: Tensor, is_valid: Tensor) -> Tensor:
    """Return the mean over the last axis where valid; 0 where nothing is."""
    return values.where(is_valid, 0.0).sum(-1) / is_valid.sum(-1).clamp(min=1)
