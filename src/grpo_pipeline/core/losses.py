"""The losses of hybrid learning: the policy's surrogate loss, the value loss, and the weighted sum of all terms."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from grpo_pipeline.core.algorithms import (
    DEFAULT_OPTIONS,
    Algorithm,
    LossOptions,
    RatioLevel,
    Reduction,
    check_combination,
    with_clip,
)
from grpo_pipeline.core.reductions import divide, reduce_units
from grpo_pipeline.core.surrogates import SURROGATES
from grpo_pipeline.core.units import UNITS, counted_units


class NonFiniteLossError(ArithmeticError):
    """A term of the loss is NaN or infinite; the weights have not been touched."""


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    is_valid: Tensor,
    *,
    algorithm: Algorithm,
    clip_low: float | None = None,
    clip_high: float | None = None,
    ratio_level: RatioLevel = "decision",
    reduction: Reduction = "per_sequence",
    denominator: Tensor | float | None = None,
    options: LossOptions = DEFAULT_OPTIONS,
) -> Tensor:
    """Return the policy's loss on stored rollouts: surrogate per unit, then reduced.

    Args:
        logprobs: [P, G, L], present policy, with gradient, of exactly the stored actions.
        old_logprobs: [P, G, L], as drawn; detached here.
        advantages: [P, G]; detached here.
        is_valid: bool [P, G, L]; units that are not valid contribute exactly 0 and get no gradient.
        algorithm: a key of ``SURROGATES``; ``check_combination`` says what goes with it.
        clip_low: replaces ``options.clip_low`` where given.
        clip_high: replaces ``options.clip_high`` where given.
        ratio_level: a key of ``UNITS``.
        reduction: see ``count_units``.
        denominator: that of the whole optimiser step, when this call sees only a part of it; None = of this call.
        options: what only some algorithms and reductions read.

    Returns:
        A scalar. Its value near 0 on-policy is expected: normalised advantages sum to 0; the gradient does not vanish.

    Raises:
        ValueError: for an unknown name, names that do not go together, or shapes that do not fit.
    """
    options = with_clip(options, clip_low, clip_high)
    _check_names(algorithm, ratio_level, reduction, options)
    _check_shapes(logprobs, old_logprobs, advantages, is_valid)
    units = UNITS[ratio_level](logprobs, old_logprobs.detach(), is_valid)
    per_unit_advantage = advantages.detach().to(logprobs.dtype).unsqueeze(-1)
    surrogate = SURROGATES[algorithm](units, per_unit_advantage, options)
    return reduce_units(
        surrogate,
        counted_units(is_valid, ratio_level),
        reduction=reduction,
        denominator=denominator,
        max_decisions=options.max_decisions,
    )


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
    r, v = returns.detach()[is_scored].double(), values.detach()[is_scored].double()
    if r.numel() == 0 or float(r.max() - r.min()) == 0.0:
        return math.nan
    return 1.0 - float((r - v).var(unbiased=False) / r.var(unbiased=False))


def hybrid_loss(terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Return the weighted sum of the terms; a term of weight 0 leaves the graph altogether.

        L = sum over names of weights[name] * terms[name]

    Each term brings its own denominator, so that none dilutes another. The sign is in the weight: entropy is a term
    with a negative weight.

    Raises:
        ValueError: if a term has no weight, a non-zero weight has no term, or every weight is 0.
    """
    odd = sorted(set(terms) - set(weights)) + sorted(name for name, w in weights.items() if w != 0 and name not in terms)
    if odd:
        raise ValueError(f"loss terms and their weights must match by name, got only one of the two for {odd}; add the other")
    weighted = [weights[name] * term for name, term in terms.items() if weights[name] != 0]
    if not weighted:
        raise ValueError(f"at least one loss weight must differ from 0, got {dict(weights)}; nothing would be learned")
    return sum(weighted[1:], start=weighted[0])


def check_finite(terms: Mapping[str, Tensor], *, step: int, task: str) -> None:
    """Stop at the first loss term that is NaN or infinite, before any weight is touched.

    Raises:
        NonFiniteLossError: naming the step, the task and the term.
    """
    # One transfer from the device for all of them.
    values = torch.stack([term.detach().double() for term in terms.values()]).tolist() if terms else []
    for name, value in zip(terms, values, strict=True):
        if not math.isfinite(value):
            raise NonFiniteLossError(
                f"loss term '{name}' of task '{task}' must be finite, got {value} at step {step}; "
                "the weights are unchanged: look at the inputs of this term, or lower the learning rate, and resume"
            )


def _check_names(algorithm: str, ratio_level: str, reduction: str, options: LossOptions) -> None:
    check_combination(
        algorithm=algorithm,
        ratio_level=ratio_level,
        reduction=reduction,
        delta=options.delta,
        dual_clip=options.dual_clip,
        update_epochs=1,
        clip_high=options.clip_high,
    )
    if ratio_level == "joint" and options.max_decisions is not None:
        raise ValueError(
            f"max_decisions must be absent for ratio_level joint, got {options.max_decisions}; a joint sample is one unit"
        )


def _check_shapes(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, is_valid: Tensor) -> None:
    if logprobs.ndim != 3 or old_logprobs.shape != logprobs.shape or is_valid.shape != logprobs.shape:
        raise ValueError(
            f"logprobs, old_logprobs and is_valid must share one shape [P, G, L], got {list(logprobs.shape)}, "
            f"{list(old_logprobs.shape)} and {list(is_valid.shape)}; pass the log-probabilities of the stored actions"
        )
    if advantages.shape != logprobs.shape[:2]:
        raise ValueError(f"advantages must have shape {list(logprobs.shape[:2])}, got {list(advantages.shape)}; give one each")


def _check_values(values: Tensor, returns: Tensor, old_values: Tensor | None, clip: float | None) -> None:
    if values.shape != returns.shape:
        raise ValueError(f"returns must have the shape of values {list(values.shape)}, got {list(returns.shape)}; reduce first")
    if clip is None:
        return
    if old_values is None:
        raise ValueError("old_values must be given when clip is set, got None; pass the values at rollout time")
    if old_values.shape != values.shape:
        raise ValueError(
            f"old_values must have the shape of values {list(values.shape)}, got {list(old_values.shape)}; reshape it"
        )
    if not clip > 0:
        raise ValueError(f"clip must be positive, got {clip}; use None for no clipping")
