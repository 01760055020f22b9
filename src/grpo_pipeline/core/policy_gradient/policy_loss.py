"""Compute the policy's loss on stored rollouts: ratios of units, a surrogate of each, reduced to one number."""

from torch import Tensor

from grpo_pipeline.core.policy_gradient.algorithms import (
    DEFAULT_OPTIONS,
    Algorithm,
    LossOptions,
    RatioLevel,
    Reduction,
    check_combination,
    with_clip,
)
from grpo_pipeline.core.policy_gradient.ratios import UNITS, counted_units, per_unit
from grpo_pipeline.core.policy_gradient.reductions import reduce_units
from grpo_pipeline.core.policy_gradient.surrogates import SURROGATES


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
        advantages: [P, G], or with ratios of decisions [P, G, L]; detached here.
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
    _check_shapes(logprobs, old_logprobs, advantages, is_valid, ratio_level)
    # l with gradient, o without; U = L for ratios of decisions, else 1.
    units = UNITS[ratio_level](logprobs, old_logprobs.detach(), is_valid)
    of_units = per_unit(advantages.detach().to(logprobs.dtype))  # A: [P, G, 1] or [P, G, L]
    surrogate = SURROGATES[algorithm](units, of_units, options)  # [P, G, U]
    return reduce_units(
        surrogate,
        counted_units(is_valid, ratio_level),
        reduction=reduction,
        denominator=denominator,
        max_decisions=options.max_decisions,
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


def _check_shapes(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, is_valid: Tensor, ratio_level: str
) -> None:
    if (
        logprobs.ndim != 3
        or old_logprobs.shape != logprobs.shape
        or is_valid.shape != logprobs.shape
    ):
        raise ValueError(
            f"logprobs, old_logprobs and is_valid must share one shape [P, G, L], got {list(logprobs.shape)}, "
            f"{list(old_logprobs.shape)} and {list(is_valid.shape)}; pass the log-probabilities of the stored actions"
        )
    if advantages.shape == logprobs.shape and ratio_level != "decision":
        raise ValueError(
            f"advantages must have shape {list(logprobs.shape[:2])} with ratio_level {ratio_level}, got one per decision; a "
            "sample is one unit there: use ratio_level decision"
        )
    if advantages.shape not in (logprobs.shape[:2], logprobs.shape):
        raise ValueError(
            f"advantages must have shape {list(logprobs.shape[:2])}, got {list(advantages.shape)}; give one each"
        )
