"""Compute the loss of predicted values, and how much of the returns they explain."""

import math

import torch
from torch import Tensor

from grpo_pipeline.core.groups import require_shape
from grpo_pipeline.core.policy_gradient.reductions import divide


def value_loss(
    values: Tensor,
    returns: Tensor,
    old_values: Tensor | None = None,
    clip: float | None = None,
    *,
    denominator: Tensor | float | None = None,
) -> Tensor:
    """Return the squared error of predicted values.

        0.5 * mean (V - R)^2;   clipped: 0.5 * mean max( (V - R)^2, (V_old + clamp(V - V_old, -clip, clip) - R)^2 )

    Source: the PPO reference implementation (openai/baselines). Returns that are NaN (not scored) leave the mean. The
    larger error counts, so that the clip can only hold a value back where moving on would not improve it.

    Args:
        values: [P] or any shape, with gradient.
        returns: same shape, detached here.
        old_values: same shape, values at rollout time; needed for clipping.
        clip: half-width of the trust region, or None.
        denominator: number of scored values of the optimiser step; None = of this call, at least 1.

    Raises:
        ValueError: if shapes differ, ``clip`` is not positive, or is given without ``old_values``.
    """
    _check_values(values, returns, old_values, clip)
    is_scored = ~returns.isnan()
    # NaN is replaced before it meets a gradient, and its error is left out of the sum below.
    target = returns.detach().to(values.dtype).nan_to_num()
    error = (values - target).square()
    if clip is not None and old_values is not None:
        clipped = old_values.detach() + (values - old_values.detach()).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - target).square())
    total = 0.5 * error.masked_fill(~is_scored, 0.0).sum()
    return divide(total, is_scored.sum().clamp(min=1) if denominator is None else denominator)


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """Return 1 - Var(R - V) / Var(R): 1 is perfect, 0 is no better than a constant; NaN where Var(R) is 0."""
    is_scored = ~returns.isnan()
    r, v = returns.detach()[is_scored].double(), values.detach()[is_scored].double()  # [n], scored
    if r.numel() == 0 or float(r.max() - r.min()) == 0.0:
        return math.nan
    return 1.0 - float((r - v).var(unbiased=False) / r.var(unbiased=False))


def _check_values(
    values: Tensor, returns: Tensor, old_values: Tensor | None, clip: float | None
) -> None:
    require_shape("returns", returns, values.shape, "reduce first")
    if clip is None:
        return
    if old_values is None:
        raise ValueError(
            "old_values must be given when clip is set, got None; pass the values at rollout time"
        )
    require_shape("old_values", old_values, values.shape, "give one per value")
    if not clip > 0:
        raise ValueError(f"clip must be positive, got {clip}; use None for no clipping")
