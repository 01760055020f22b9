"""Compute the Kullback-Leibler divergence in nats: exactly, or by three estimators from samples, for the loss or the reward.

Two divergences must not be mixed up. ``kl/reference`` is KL(present policy || reference): what ``kl_loss`` and
``kl_in_reward`` penalise. ``kl/rollout`` is KL(rollout policy || present policy), how far the updates have moved since the
samples were drawn: ``diagnostics.ratio_statistics`` measures it.

The samples must come from the first policy (l = log p of the sampled action, q = its log-prob under the reference).
Source of k1, k2, k3: Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html, 2020).
"""

from collections.abc import Callable, Mapping
from typing import Literal

from torch import Tensor

from grpo_pipeline.core.groups import check_decisions
from grpo_pipeline.core.policy_gradient.names import RatioLevel, Reduction, choose
from grpo_pipeline.core.policy_gradient.ratios import LOG_RATIO_BOUND, counted_units
from grpo_pipeline.core.policy_gradient.reductions import count_units, reduce_units

# Largest k3 of one decision, in nats; verl's number.
K3_BOUND = 10.0

LossEstimator = Literal["k2", "k3", "ratio_k3"]
RewardEstimator = Literal["k1", "k2", "k3"]


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return l - q: unbiased, high variance. Use it in a reward only: as a loss its expected gradient is 0."""
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return (l - q)^2 / 2: biased in value, but its expected gradient is that of the exact KL on-policy."""
    return (logprobs - ref_logprobs).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return exp(q - l) - (q - l) - 1: unbiased and never negative; q - l is at most 20, and the value at most 10 nats.

    Outside of the bounds (q - l above 2.6 or below -11) there is no gradient; inside, nothing is changed. Without them k3 of one
    decision overflows in float32 where q - l is above 88, and one improbable action outweighs a whole batch long before.
    Source of the bounds: verl, ``kl_penalty_forward``, low_var_kl.
    """
    return unbounded_k3(ref_logprobs - logprobs).clamp(max=K3_BOUND)


def unbounded_k3(difference: Tensor) -> Tensor:
    """Return exp(x) - x - 1 for x = q - l of at most 20: for measuring, where the value counts and no gradient is taken."""
    x = difference.clamp(max=LOG_RATIO_BOUND)
    # expm1 keeps the digits that exp(x) - 1 loses near 0 (test_k3_keeps_digits_near_zero).
    return x.expm1() - x


ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def kl_loss(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    is_valid: Tensor,
    *,
    estimator: LossEstimator,
    ratio: Tensor | None = None,
    reduction: Reduction = "per_sequence",
    denominator: Tensor | float | None = None,
) -> Tensor:
    """Return the reduced KL(present policy || reference), ``kl/reference``, as a term of the loss.

        k2         (l - q)^2 / 2                           expected gradient on-policy: that of KL(p || q)
        k3         exp(q - l) - (q - l) - 1                expected gradient on-policy: that of KL(q || p); bounded, see ``k3``
        ratio_k3   r * k3, r = exp(l - o) with gradient    expected gradient on- and off-policy: that of KL(p || q)

    ``ratio_k3`` is TRL's default since 1.16 (``use_bias_correction_kl``; DeepSeek-V3.2, arXiv 2512.02556): the factor is
    the policy loss's own ratio, not clipped and not cut by delta, and it changes the gradient even where it is exactly 1.
    A sequence ratio is broadcast over the decisions, as TRL does; the property of the table holds for single decisions.

    Args:
        logprobs: [P, G, L], present policy, with gradient.
        ref_logprobs: [P, G, L], reference policy, without gradient.
        is_valid: bool [P, G, L]; other decisions contribute exactly 0 and get no gradient.
        estimator: k1 is refused, see below.
        ratio: [P, G, L] or [P, G, 1] from ``importance_ratio``, for ratio_k3 alone.
        reduction: over decisions; see ``count_units``.
        denominator: that of the whole optimiser step; None = of this call.

    Raises:
        ValueError: for k1 or an unknown name, a ratio that is missing or not used, shapes that differ, or a reference with
            gradient.
    """
    function = _choose_loss(estimator)
    if (ratio is None) == (estimator == "ratio_k3"):
        got = "none" if ratio is None else "one"
        raise ValueError(
            f"ratio must be given for estimator ratio_k3 and for no other, got {got} for {estimator!r}; see kl_loss"
        )
    check_decisions(is_valid, logprobs=logprobs, ref_logprobs=ref_logprobs)
    if ref_logprobs.requires_grad:
        raise ValueError("ref_logprobs must carry no gradient, got one; detach them")
    per_decision = function(*_masked(logprobs, ref_logprobs, is_valid))
    weighted = per_decision if ratio is None else ratio * per_decision  # [P, G, L]
    return reduce_units(weighted, is_valid, reduction=reduction, denominator=denominator)


def kl_in_reward(
    logprobs_old: Tensor, ref_logprobs: Tensor, is_valid: Tensor, *, estimator: RewardEstimator
) -> Tensor:
    """Estimate KL(rollout policy || reference) per decision, to be subtracted from the reward.

    At collection the rollout policy is the present one, so this is ``kl/reference`` at that moment; later updates do not
    change it. Summed over a row, k1 is the log-ratio of RLHF (arXiv 2009.01325).

    Args:
        logprobs_old: [P, G, L], as drawn.
        ref_logprobs: [P, G, L], reference policy.
        is_valid: bool [P, G, L].
        estimator: k1 can be negative for a single decision; k2 and k3 cannot.

    Returns:
        [P, G, L], detached, exactly 0 where not valid.

    Raises:
        ValueError: for an unknown name or shapes that differ.
    """
    check_decisions(is_valid, logprobs_old=logprobs_old, ref_logprobs=ref_logprobs)
    function = choose(ESTIMATORS, estimator, "estimator")
    return function(*_masked(logprobs_old.detach(), ref_logprobs.detach(), is_valid))


def categorical_kl(log_p: Tensor, log_q: Tensor, is_allowed: Tensor) -> Tensor:
    """Return the exact KL(p || q) of two categoricals.

        KL = sum over allowed v of p_v * (log p_v - log q_v)

    Choices that are not allowed, or have p = 0, contribute exactly 0, in the value and in the gradient. A choice with
    p > 0 and q = 0 makes it infinite, as it should.

    Args:
        log_p: [..., V], normalised, may be -inf.
        log_q: [..., V], normalised, may be -inf.
        is_allowed: bool [..., V] or broadcastable.

    Returns:
        [...], at least 0 up to rounding.
    """
    is_counted = is_allowed & (log_p > -float("inf"))
    safe_p = log_p.masked_fill(~is_counted, 0.0)
    safe_q = log_q.masked_fill(~is_counted, 0.0)
    return (safe_p.exp() * (safe_p - safe_q)).sum(dim=-1)


def _choose_loss(estimator: str) -> Callable[[Tensor, Tensor], Tensor]:
    if estimator == "k1":
        raise ValueError(
            "the estimator of a KL loss must be k2, k3 or ratio_k3, got 'k1'; the gradient of k1 is zero on average and pulls "
            "nowhere: use it in the reward (kl_in_reward)"
        )
    return choose({"k2": k2, "k3": k3, "ratio_k3": k3}, estimator, "estimator")


def _masked(logprobs: Tensor, ref_logprobs: Tensor, is_valid: Tensor) -> tuple[Tensor, Tensor]:
    """Set both to 0 where not valid, before any difference: -inf minus -inf is NaN, in the gradient too."""
    return logprobs.masked_fill(~is_valid, 0.0), ref_logprobs.masked_fill(~is_valid, 0.0)


def count_kl(
    is_valid: Tensor,
    *,
    ratio_level: RatioLevel,
    reduction: Reduction,
    max_decisions: int | None = None,
) -> Tensor:
    """Count what one micro-batch adds to the denominator of a KL over decisions.

    Under ``constant`` it is the policy loss's own number, rows * L_max or, for joint samples, rows: a KL weight then means the
    same beside the policy loss at every length, as in Dr. GRPO. Under the others it is that of the decisions.
    """
    counted = counted_units(is_valid, ratio_level) if reduction == "constant" else is_valid
    return count_units(counted, reduction, max_decisions)
