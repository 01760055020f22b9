"""Compute the losses of hybrid learning: the policy's surrogate loss, the value loss, and the weighted sum of all terms."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_pipeline.core.policy_gradient.algorithms import (
    DEFAULT_OPTIONS,
    REDUCTIONS,
    Algorithm,
    LossOptions,
    RatioLevel,
    Reduction,
    check_combination,
    check_name,
    choose,
    with_clip,
)

# From one number per unit to one number: what a loss is divided by, by name.
#
# Every reduction is a sum divided by a denominator that can be counted before the first micro-batch (``denominators.py``),
# so that any split into micro-batches gives one gradient. ``per_decision_local`` is the exception, by definition.


def reduce_units(
    x: Tensor,
    is_valid: Tensor,
    *,
    reduction: Reduction,
    denominator: Tensor | float | None = None,
    max_decisions: int | None = None,
) -> Tensor:
    """Reduce units to a scalar.

        per_sequence         sum over rows of the row's mean over valid units / denominator
        per_decision         sum over valid units / denominator
        constant             sum over valid units / denominator
        per_decision_local   mean over the valid units of this call / denominator

    Args:
        x: [P, G, U], or [P, G, 1] where one value stands for every unit of the row.
        is_valid: bool [P, G, U]; other units contribute exactly 0 and get no gradient.
        reduction: see ``count_units`` for what each denominator counts.
        denominator: that of the whole optimiser step; None = ``loss_denominator`` of this call.
        max_decisions: L_max of ``constant``.
    """
    kept = x.expand_as(is_valid).masked_fill(~is_valid, 0.0)  # [P, G, U]
    if reduction == "per_sequence":
        kept = kept / is_valid.sum(dim=-1, keepdim=True).clamp(min=1)  # [P, G, U] / [P, G, 1]
    if reduction == "per_decision_local":
        kept = kept / is_valid.sum().clamp(min=1)
    return divide(
        kept.sum(),
        loss_denominator(is_valid, reduction, max_decisions)
        if denominator is None
        else denominator,
    )


def loss_denominator(
    is_valid: Tensor, reduction: Reduction, max_decisions: int | None = None
) -> Tensor:
    """Return ``count_units``, at least 1: the denominator of a loss that is computed in one piece."""
    return count_units(is_valid, reduction, max_decisions).clamp(min=1)


def count_units(is_valid: Tensor, reduction: Reduction, max_decisions: int | None = None) -> Tensor:
    """Count what this micro-batch adds to the denominator; float64 scalar, 0 where nothing is valid.

        per_sequence         rows, with or without a valid unit    GRPO, arXiv 2402.03300
        per_decision         valid units                           DAPO, arXiv 2503.14476
        constant             rows * L_max, valid or not            Dr. GRPO, arXiv 2503.20783
        per_decision_local   1: micro-batches are counted          "bnpo" of TRL: the one that depends on the split, because
                                                                   a decision in a short micro-batch weighs more

    Args:
        is_valid: bool [P, G, U].
        reduction: a name of the table.
        max_decisions: L_max, at least U; None = U, which is the padding of this micro-batch.

    Raises:
        ValueError: for an unknown reduction, or a row longer than max_decisions.
    """
    rows, units = is_valid.shape[0] * is_valid.shape[1], is_valid.shape[2]
    check_name(reduction, REDUCTIONS, "reduction")
    if reduction == "per_decision":
        return is_valid.sum().double()
    if reduction == "constant" and max_decisions is not None and max_decisions < units:
        raise ValueError(
            f"max_decisions must be at least the length of a row, {units}, got {max_decisions}; raise it"
        )
    constant = rows * (units if max_decisions is None else max_decisions)
    fixed = {"per_sequence": rows, "constant": constant, "per_decision_local": 1}
    return torch.tensor(float(fixed[reduction]), dtype=torch.float64, device=is_valid.device)


def mean_over(x: Tensor, *, denominator: Tensor | float | None = None) -> Tensor:
    """Return sum(x) / denominator, the denominator being that of the optimiser step; None = the mean of x."""
    return divide(x.sum(), float(max(1, x.numel())) if denominator is None else denominator)


def divide(total: Tensor, denominator: Tensor | float) -> Tensor:
    """Return total / denominator in the type of the total: a float64 count must not turn a float32 loss into float64."""
    return (total / denominator).to(total.dtype)


# Units of the importance ratio: one decision, the whole sample, or the sample's average decision.
#
# A new ratio is one function in ``UNITS`` and, if it is not per decision, one line in ``counted_units``.

# Largest log-ratio that is exponentiated: exp(20) = 4.9e8 is far outside of any clip, and finite, squared too. verl's number.
LOG_RATIO_BOUND = 20.0


class Units(NamedTuple):
    """Log-probabilities per unit [P, G, U] (U = L or 1), their distance l - o to the rollout policy, and which are valid."""

    logprobs: Tensor
    log_ratio: Tensor
    is_valid: Tensor

    @property
    def ratio(self) -> Tensor:
        """Return r = exp(l - o), [P, G, U], bounded as ``bounded_ratio`` says; exactly 1 where invalid."""
        return bounded_ratio(self.log_ratio)


def bounded_ratio(log_ratio: Tensor) -> Tensor:
    """Return exp(min(x, 20)): finite, and without gradient above the bound.

    In float32 exp(89) is infinite, and its product with the gradient 0 of a clip is NaN. A joint or summed log-ratio is bounded
    after it was summed. NaN stays NaN, so that ``losses.check_finite`` finds it.
    Source: verl, ``compute_policy_loss_vanilla``. It bounds at -20, too, where the ratio is 2e-9; here it goes on to 0, which
    overflows nowhere and is what libraries without a bound compute.
    """
    return log_ratio.clamp(max=LOG_RATIO_BOUND).exp()


def decision_units(logprobs: Tensor, old_logprobs: Tensor, is_valid: Tensor) -> Units:
    """Take each decision for itself: r = exp(l - o), [P, G, L]. Source: PPO, arXiv 1707.06347, section 3."""
    return Units(_kept(logprobs, is_valid), _kept(logprobs - old_logprobs, is_valid), is_valid)


def joint_units(logprobs: Tensor, old_logprobs: Tensor, is_valid: Tensor) -> Units:
    """Take the whole sample as one unit: r = exp(sum over valid L of (l - o)), [P, G, 1]; the likelihood of a set of points."""
    each = decision_units(logprobs, old_logprobs, is_valid)
    return Units(
        each.logprobs.sum(-1, keepdim=True),  # [P, G, 1]
        each.log_ratio.sum(-1, keepdim=True),  # [P, G, 1]
        is_valid.any(-1, keepdim=True),  # [P, G, 1]
    )


def sequence_units(logprobs: Tensor, old_logprobs: Tensor, is_valid: Tensor) -> Units:
    """Take the geometric mean over the sample: r = exp(sum_L m * (l - o) / sum_L m), [P, G, 1].

    It is no likelihood ratio; it keeps ratios of long and short samples on one scale. Source: GSPO, arXiv 2507.18071,
    equation 7.
    """
    joint = joint_units(logprobs, old_logprobs, is_valid)
    length = is_valid.sum(-1, keepdim=True).clamp(min=1)  # [P, G, 1]
    return Units(joint.logprobs / length, joint.log_ratio / length, joint.is_valid)


UNITS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Units]] = {
    "decision": decision_units,
    "joint": joint_units,
    "sequence": sequence_units,
}


def counted_units(is_valid: Tensor, ratio_level: RatioLevel) -> Tensor:
    """Return which units a reduction counts, bool [P, G, L] or [P, G, 1].

    A joint sample counts once. A ``sequence`` ratio stands for each of its decisions, as in TRL: per_sequence then is the
    mean over rows, and per_decision weighs a row by its length.
    """
    return is_valid.any(dim=-1, keepdim=True) if ratio_level == "joint" else is_valid


def importance_ratio(
    logprobs: Tensor, old_logprobs: Tensor, is_valid: Tensor, *, level: RatioLevel
) -> Tensor:
    """Return the ratio of the present policy to the rollout policy: [P, G, L] per decision, else [P, G, 1].

    Has the gradient of ``logprobs`` and none of ``old_logprobs``.

    Raises:
        ValueError: for an unknown level.
    """
    return choose(UNITS, level, "ratio_level")(logprobs, old_logprobs.detach(), is_valid).ratio


def per_unit(advantages: Tensor) -> Tensor:
    """Return advantages of samples [P, G] or of decisions [P, G, L] beside units: [P, G, 1] or [P, G, L]."""
    return advantages if advantages.ndim == 3 else advantages.unsqueeze(-1)


def _kept(x: Tensor, is_valid: Tensor) -> Tensor:
    return x.masked_fill(~is_valid, 0.0)


# The surrogate losses: one number per unit, whose gradient is that of REINFORCE while the policy has not moved.
#
# A new algorithm is one function in ``SURROGATES`` and its name and row in ``algorithms.py``; callers do not change.
# Letters: l log-probability of the unit now, r its ratio to the rollout policy, A its advantage.

Surrogate = Callable[[Units, Tensor, LossOptions], Tensor]


def reinforce_surrogate(units: Units, advantages: Tensor, options: LossOptions) -> Tensor:
    """Return -A * l. Source: Williams, 1992. The options are not used."""
    return -advantages * units.logprobs


def grpo_surrogate(units: Units, advantages: Tensor, options: LossOptions) -> Tensor:
    """Return -min(min(r, delta) * A, clip(r, 1 - low, 1 + high) * A), for A < 0 at most dual_clip * |A|.

    Source: PPO, arXiv 1707.06347, equation 7; low != high: DAPO, arXiv 2503.14476, section 3.1; delta: INTELLECT-2,
    arXiv 2505.07291; dual_clip: arXiv 1912.09729; on the sequence ratio: GSPO, arXiv 2507.18071, equation 5. Without
    delta or dual_clip the loss of A < 0 grows with r without bound.
    """
    ratio = units.ratio  # r: [P, G, U]
    # delta matters where A < 0 alone: above 1 + high a positive A is bounded by the clip.
    free = ratio if options.delta is None else ratio.clamp(max=options.delta)
    loss = -torch.minimum(
        free * advantages, ratio.clamp(1.0 - options.clip_low, 1.0 + options.clip_high) * advantages
    )
    if options.dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -options.dual_clip * advantages), loss)


def cispo_surrogate(units: Units, advantages: Tensor, options: LossOptions) -> Tensor:
    """Return -stop(min(r, ratio_cap)) * A * l.

    The weight is capped and carries no gradient, so that no unit ever falls silent. Source: CISPO, arXiv 2506.13585.
    The clip bounds are not used.
    """
    return -units.ratio.detach().clamp(max=options.ratio_cap) * advantages * units.logprobs


def sapo_surrogate(units: Units, advantages: Tensor, options: LossOptions) -> Tensor:
    """Return -A * sigmoid(tau * (r - 1)) * 4 / tau, tau = tau_positive where A > 0, tau_negative elsewhere.

    The gradient fades smoothly as r leaves 1 on either side. Source: SAPO, arXiv 2511.20347. The clip bounds
    are not used.
    """
    positive = torch.full_like(advantages, options.tau_positive)
    tau = positive.masked_fill(advantages <= 0, options.tau_negative)  # [P, G, 1] or [P, G, L]
    return -advantages * torch.sigmoid(tau * (units.ratio - 1.0)) * 4.0 / tau


SURROGATES: Mapping[str, Surrogate] = {
    "reinforce": reinforce_surrogate,
    "ppo": grpo_surrogate,
    "grpo": grpo_surrogate,
    "dr_grpo": grpo_surrogate,
    "dapo": grpo_surrogate,
    "bnpo": grpo_surrogate,
    "gspo": grpo_surrogate,
    "cispo": cispo_surrogate,
    "sapo": sapo_surrogate,
}


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


def hybrid_loss(terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Return the weighted sum of the terms; a term of weight 0 leaves the graph altogether.

        L = sum over names of weights[name] * terms[name]

    Each term brings its own denominator, so that none dilutes another. The sign is in the weight: entropy is a term
    with a negative weight.

    Raises:
        ValueError: if a term has no weight, a non-zero weight has no term, or every weight is 0.
    """
    odd = sorted(set(terms) - set(weights)) + sorted(
        name for name, w in weights.items() if w != 0 and name not in terms
    )
    if odd:
        raise ValueError(
            f"loss terms and their weights must match by name, got only one of the two for {odd}; add the other"
        )
    weighted = [weights[name] * term for name, term in terms.items() if weights[name] != 0]
    if not weighted:
        raise ValueError(
            f"at least one loss weight must differ from 0, got {dict(weights)}; nothing would be learned"
        )
    return sum(weighted[1:], start=weighted[0])


def check_finite(terms: Mapping[str, Tensor], *, step: int, task: str) -> None:
    """Stop at the first loss term that is NaN or infinite, before any weight is touched.

    Raises:
        NonFiniteLossError: naming the step, the task and the term.
    """
    # One transfer from the device for all of them.
    values = (
        torch.stack([term.detach().double() for term in terms.values()]).tolist() if terms else []
    )
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


def _check_values(
    values: Tensor, returns: Tensor, old_values: Tensor | None, clip: float | None
) -> None:
    if values.shape != returns.shape:
        raise ValueError(
            f"returns must have the shape of values {list(values.shape)}, got {list(returns.shape)}; reduce first"
        )
    if clip is None:
        return
    if old_values is None:
        raise ValueError(
            "old_values must be given when clip is set, got None; pass the values at rollout time"
        )
    if old_values.shape != values.shape:
        raise ValueError(
            f"old_values must have the shape of values {list(values.shape)}, got {list(old_values.shape)}; reshape it"
        )
    if not clip > 0:
        raise ValueError(f"clip must be positive, got {clip}; use None for no clipping")
