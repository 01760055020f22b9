"""Compute the policy's loss on stored rollouts: ratios of units, a surrogate of each, reduced to one number."""

from torch import Tensor

from grpo_pipeline.core.groups import check_decisions
from grpo_pipeline.core.objective.surrogates.clipped import Grpo
from grpo_pipeline.core.objective.surrogates.surrogate import Surrogate
from grpo_pipeline.core.policy_gradient.ratios import UNITS, counted_units, per_unit
from grpo_pipeline.core.policy_gradient.reductions import reduce_units

DEFAULT = Grpo()


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    is_valid: Tensor,
    surrogate: Surrogate = DEFAULT,
    *,
    denominator: Tensor | float | None = None,
    selected: Tensor | None = None,
) -> Tensor:
    """Return the policy's loss on stored rollouts: surrogate per unit, then reduced.

    Args:
        logprobs: [P, G, L], present policy, with gradient, of exactly the stored actions.
        old_logprobs: [P, G, L], as drawn; detached here.
        advantages: [P, G], or with ratios of decisions [P, G, L]; detached here.
        is_valid: bool [P, G, L]; units that are not valid contribute exactly 0 and get no gradient.
        surrogate: such as ``Grpo(clip_high=0.28)``, the default being ``Grpo()``; its weight is not applied here.
        denominator: that of the whole optimiser step, when this call sees only a part of it; None = of this call.
        selected: what the surrogate selects, bool [P, G, L], of the whole batch likewise; None = of this call.

    Returns:
        A scalar. Its value near 0 on-policy is expected: normalised advantages sum to 0; the gradient does not vanish.

    Raises:
        ValueError: for shapes that do not fit.
    """
    level = surrogate.ratio_level
    check_decisions(is_valid, logprobs=logprobs, old_logprobs=old_logprobs)
    _check_advantages(advantages, logprobs, level)
    # l with gradient, o without; U = L for ratios of decisions, else 1.
    units = UNITS[surrogate.unit_level](logprobs, old_logprobs.detach(), is_valid)
    if selected is None:
        selected = surrogate.select(old_logprobs, advantages, is_valid)
    of_units = per_unit(advantages.detach().to(logprobs.dtype))  # A: [P, G, 1] or [P, G, L]
    return reduce_units(
        surrogate.of_units(units._replace(is_selected=selected), of_units),  # [P, G, U]
        counted_units(is_valid, level),
        reduction=surrogate.reduction,
        denominator=denominator,
        max_decisions=surrogate.max_decisions,
    )


def _check_advantages(advantages: Tensor, logprobs: Tensor, level: str) -> None:
    if advantages.shape == logprobs.shape and level != "decision":
        raise ValueError(
            f"advantages must have shape {list(logprobs.shape[:2])} with ratio_level {level}, got one per decision; a "
            "sample is one unit there: use ratio_level decision"
        )
    if advantages.shape not in (logprobs.shape[:2], logprobs.shape):
        raise ValueError(
            f"advantages must have shape {list(logprobs.shape[:2])}, got {list(advantages.shape)}; give one each"
        )
