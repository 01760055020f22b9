"""Compute loss terms of decisions [B] or [B, T] from given advantages; each is the mean over valid decisions.

``policy_gradient`` thinks in prompts and groups, with one advantage per sample. Here each decision is a row of its own, so that
advantages may differ over time, as those of GAE do.
"""

import math

import torch
from torch import Tensor

from grpo_pipeline.core.groups import require_shape
from grpo_pipeline.core.objective.surrogates.surrogate import Surrogate
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
from grpo_pipeline.core.policy_gradient.ratios import bounded_ratio
from grpo_pipeline.core.policy_gradient.value_loss import value_loss


def valid_decisions(log_probs: Tensor, is_valid: Tensor | None) -> Tensor:
    """Return the mask as bool, of the shape of the log-probabilities; all True for None."""
    if is_valid is None:
        return torch.ones_like(log_probs, dtype=torch.bool)
    require_shape("is_valid", is_valid, log_probs.shape, "one entry per decision")
    return is_valid if (found := flags("is_valid", is_valid)) is None else found


def flags(name: str, mask: Tensor | None) -> Tensor | None:
    """Return 0/1 entries of any type as bool; None stays None.

    Raises:
        ValueError: for an entry that is neither 0 nor 1.
    """
    if mask is None or mask.dtype == torch.bool:
        return mask
    is_odd = (mask != 0) & (mask != 1)
    if bool(is_odd.any()):
        raise ValueError(
            f"{name} must be bool, or 0 and 1, got {float(mask[is_odd][0])}; give flags, not probabilities"
        )
    return mask != 0


def policy(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    is_valid: Tensor,
    surrogate: Surrogate,
) -> Tensor:
    """Return ``core.policy_gradient.policy_loss.policy_loss`` of decisions that are rows.

    Args:
        log_probs: [B] or [B, T], with gradient.
        old_log_probs: the same at rollout time; detached.
        advantages: of the same shape, or one per row; detached.
        is_valid: bool of the same shape.
        surrogate: of ratios of decisions.

    Raises:
        ValueError: for shapes that do not fit.
    """
    require_shape("old_log_probs", old_log_probs, log_probs.shape, "score the same actions")
    # Each decision is a prompt of its own, with one sample of one decision: [B * T, 1, 1], advantages [B * T, 1].
    return policy_loss(
        log_probs.reshape(-1, 1, 1),
        old_log_probs.reshape(-1, 1, 1),
        _per_decision(advantages, log_probs).reshape(-1, 1),
        is_valid.reshape(-1, 1, 1),
        surrogate,
    )


def value(
    values: Tensor | None,
    old_values: Tensor | None,
    returns: Tensor | None,
    is_valid: Tensor,
    *,
    clip: float | None,
) -> Tensor:
    """Return ``value_loss.value_loss`` over valid decisions, or over rows with one if there is one value per row.

    Args:
        values: of the shape of is_valid, or one per row, with gradient; or [B, T + 1], whose last column is left out.
        old_values: like values, at rollout time; needed for clipping.
        returns: of the shape of is_valid, or one per row.
        is_valid: bool [B] or [B, T].
        clip: half-width of the trust region, or None.

    Raises:
        ValueError: for shapes that do not fit, or if one of values and returns is missing.
    """
    if values is None or returns is None:
        missing, other = ("values", "returns") if values is None else ("returns", "values")
        raise ValueError(
            f"{missing} must be given with {other}, got None; the value loss needs both"
        )
    values = _without_bootstrap(values, is_valid)
    if old_values is not None:
        old_values = _without_bootstrap(old_values, is_valid)
    # Like the values: each decision, [B, T], or each row that has a valid one, [B].
    is_counted = is_valid if values.shape == is_valid.shape else is_valid.any(dim=-1)
    if not values.shape == returns.shape == is_counted.shape:
        raise ValueError(
            f"values and returns must have shape {list(is_valid.shape)}, or one entry per row, got {list(values.shape)} and "
            f"{list(returns.shape)}; leave the bootstrap value out of the returns"
        )
    # value_loss leaves out targets that are NaN; a padded value may be anything and must not reach the gradient.
    return value_loss(
        values.masked_fill(~is_counted, 0.0),
        returns.masked_fill(~is_counted, math.nan),
        old_values,
        clip,
    )


def _without_bootstrap(values: Tensor, is_valid: Tensor) -> Tensor:
    """Return [B, T] of values [B, T + 1]: the state after the last step has no return to be trained towards."""
    with_bootstrap = (*is_valid.shape[:-1], is_valid.shape[-1] + 1)
    return values[:, :-1] if is_valid.ndim == 2 and values.shape == with_bootstrap else values


def optional(kl_div: Tensor | None, entropy: Tensor | None, is_valid: Tensor) -> dict[str, Tensor]:
    """Return "kl" and "entropy" (minus the mean entropy), each only where it is given.

    Raises:
        ValueError: for a term that is neither a scalar nor of the shape of is_valid.
    """
    terms = {} if kl_div is None else {"kl": _reduced("kl_div", kl_div, is_valid)}
    return (
        terms if entropy is None else terms | {"entropy": -_reduced("entropy", entropy, is_valid)}
    )


@torch.no_grad()
def ratio_moments(log_probs: Tensor, old_log_probs: Tensor, is_valid: Tensor) -> dict[str, Tensor]:
    """Return ``ratio_mean`` and ``ratio_std`` (population) of exp(l - o), l - o at most 20, over valid decisions."""
    ratio = bounded_ratio((log_probs - old_log_probs).masked_fill(~is_valid, 0.0))
    mean = masked_mean(ratio, is_valid)
    return {"ratio_mean": mean, "ratio_std": masked_mean((ratio - mean).square(), is_valid).sqrt()}


def masked_mean(x: Tensor, is_valid: Tensor) -> Tensor:
    """Return the mean over valid entries; 0 where there are none."""
    return x.masked_fill(~is_valid, 0.0).sum() / is_valid.sum().clamp(min=1)


def _per_decision(advantages: Tensor, log_probs: Tensor) -> Tensor:
    if advantages.shape == log_probs.shape:
        return advantages
    if advantages.shape == log_probs.shape[:-1]:
        return advantages.unsqueeze(-1).expand_as(log_probs)
    raise ValueError(
        f"advantages must have shape {list(log_probs.shape)}, or one entry per row, got {list(advantages.shape)}; reshape them"
    )


def _reduced(name: str, x: Tensor, is_valid: Tensor) -> Tensor:
    if x.ndim == 0:
        return x
    if x.shape != is_valid.shape:
        raise ValueError(
            f"{name} must be a scalar or have shape {list(is_valid.shape)}, got {list(x.shape)}; reduce it first"
        )
    return masked_mean(x, is_valid)
