"""The losses of hybrid learning: clipped surrogates with named reductions, value loss, and their weighted sum.

A *unit* is what one ratio belongs to: one decision (``ratio_level="decision"``) or the whole ordered sample
(``"joint"``, where the log-probabilities of a row are summed first and each row is one unit). A new algorithm is one
function in ``SURROGATES``, a new ratio one function in ``UNITS``; callers do not change.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

RatioLevel = Literal["decision", "joint"]
Algorithm = Literal["reinforce", "grpo"]
Reduction = Literal["per_sequence", "per_decision", "constant"]


class NonFiniteLossError(ArithmeticError):
    """A term of the loss is NaN or infinite; the weights have not been touched."""


class Clip(NamedTuple):
    """Bounds of the ratio: it is clipped to [1 - low, 1 + high]."""

    low: float
    high: float


class Units(NamedTuple):
    """Log-probabilities per unit [P, G, U] (U = L or 1), their ratio to the rollout policy, and which units are valid."""

    logprobs: Tensor
    ratio: Tensor
    is_valid: Tensor


def decision_units(logprobs: Tensor, old_logprobs: Tensor, is_valid: Tensor) -> Units:
    """Take each decision for itself: r = exp(l - o); exactly 1 where invalid."""
    difference = (logprobs - old_logprobs).masked_fill(~is_valid, 0.0)
    return Units(logprobs.masked_fill(~is_valid, 0.0), difference.exp(), is_valid)


def joint_units(logprobs: Tensor, old_logprobs: Tensor, is_valid: Tensor) -> Units:
    """Take the whole sample as one unit: r = exp(sum over valid L of (l - o)), [P, G, 1]."""
    difference = (logprobs - old_logprobs).masked_fill(~is_valid, 0.0).sum(dim=-1, keepdim=True)
    joint = logprobs.masked_fill(~is_valid, 0.0).sum(dim=-1, keepdim=True)
    return Units(joint, difference.exp(), is_valid.any(dim=-1, keepdim=True))


def reinforce_surrogate(units: Units, advantages: Tensor, clip: Clip) -> Tensor:
    """Return -A * l. Source: Williams, 1992. The clip bounds are not used."""
    return -advantages * units.logprobs


def grpo_surrogate(units: Units, advantages: Tensor, clip: Clip) -> Tensor:
    """Return -min(r * A, clip(r, 1 - low, 1 + high) * A).

    Source: PPO, arXiv 1707.06347, equation 7; with low != high DAPO, arXiv 2503.14476, section 3.1.
    """
    clipped = units.ratio.clamp(1.0 - clip.low, 1.0 + clip.high)
    return -torch.minimum(units.ratio * advantages, clipped * advantages)


UNITS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Units]] = {"decision": decision_units, "joint": joint_units}
SURROGATES: Mapping[str, Callable[[Units, Tensor, Clip], Tensor]] = {"reinforce": reinforce_surrogate, "grpo": grpo_surrogate}
T = TypeVar("T")
REDUCTIONS = ("per_sequence", "per_decision", "constant")


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor, is_valid: Tensor, *, level: RatioLevel) -> Tensor:
    """Return the ratio of the present policy to the rollout policy: [P, G, L] per decision, [P, G, 1] joint."""
    return _choose(UNITS, level, "ratio_level")(logprobs, old_logprobs.detach(), is_valid).ratio


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    is_valid: Tensor,
    *,
    algorithm: Algorithm,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ratio_level: RatioLevel = "decision",
    reduction: Reduction = "per_sequence",
    denominator: Tensor | float | None = None,
) -> Tensor:
    """Return the policy's loss on stored rollouts.

    Args:
        logprobs: [P, G, L], present policy, with gradient, of exactly the stored actions.
        old_logprobs: [P, G, L], as drawn; detached here.
        advantages: [P, G]; detached here.
        is_valid: bool [P, G, L]; units that are not valid contribute exactly 0 and get no gradient.
        algorithm: a key of ``SURROGATES``.
        clip_low: the ratio is clipped below at 1 - clip_low.
        clip_high: the ratio is clipped above at 1 + clip_high.
        ratio_level: a key of ``UNITS``.
        reduction: see ``loss_denominator``.
        denominator: that of the whole optimiser step, when this call sees only a part of it; None = of this call.

    Returns:
        A scalar. Its value near 0 on-policy is expected: normalised advantages sum to 0; the gradient does not vanish.

    Raises:
        ValueError: for an unknown name or shapes that do not fit.
    """
    _check_shapes(logprobs, old_logprobs, advantages, is_valid)
    units = _choose(UNITS, ratio_level, "ratio_level")(logprobs, old_logprobs.detach(), is_valid)
    per_unit_advantage = advantages.detach().to(logprobs.dtype).unsqueeze(-1)
    surrogate = _choose(SURROGATES, algorithm, "algorithm")(units, per_unit_advantage, Clip(clip_low, clip_high))
    return reduce_units(surrogate, units.is_valid, reduction=reduction, denominator=denominator)


def reduce_units(x: Tensor, is_valid: Tensor, *, reduction: Reduction, denominator: Tensor | float | None = None) -> Tensor:
    """Reduce units [P, G, U] to a scalar; see ``loss_denominator`` for what each name divides by."""
    kept = x.masked_fill(~is_valid, 0.0)
    if reduction == "per_sequence":
        kept = kept / is_valid.sum(dim=-1, keepdim=True).clamp(min=1)
    return kept.sum() / (loss_denominator(is_valid, reduction) if denominator is None else denominator)


def loss_denominator(is_valid: Tensor, reduction: Reduction) -> Tensor:
    """Return what the sum over units is divided by; sum it over the micro-batches of one optimiser step.

        per_sequence   number of rows (each row's masked mean was taken before)   GRPO, arXiv 2402.03300
        per_decision   number of valid units                                      DAPO, arXiv 2503.14476
        constant       rows * units per row, valid or not                         Dr. GRPO, arXiv 2503.20783

    Raises:
        ValueError: for an unknown reduction.
    """
    if reduction == "per_sequence":
        return torch.tensor(float(is_valid.shape[0] * is_valid.shape[1]), device=is_valid.device)
    if reduction == "per_decision":
        return is_valid.sum().clamp(min=1)
    if reduction == "constant":
        return torch.tensor(float(is_valid.numel()), device=is_valid.device)
    raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}; correct the parameter")


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor | None = None, clip: float | None = None) -> Tensor:
    """Return the squared error of predicted values.

        0.5 * mean (V - R)^2;   clipped: 0.5 * mean max( (V - R)^2, (V_old + clamp(V - V_old, -clip, clip) - R)^2 )

    Source: the PPO reference implementation (openai/baselines). Returns that are NaN (not scored) leave the mean.

    Args:
        values: [P] or any shape, with gradient.
        returns: same shape, detached here.
        old_values: same shape, values at rollout time; needed for clipping.
        clip: half-width of the trust region, or None.

    Raises:
        ValueError: if shapes differ, or ``clip`` is given without ``old_values``.
    """
    if values.shape != returns.shape:
        raise ValueError(f"returns must have the shape of values {list(values.shape)}, got {list(returns.shape)}; reduce first")
    if clip is not None and old_values is None:
        raise ValueError("old_values must be given when clip is set, got None; pass the values at rollout time")
    is_scored = ~returns.isnan()
    target = returns.detach().to(values.dtype).nan_to_num()
    error = (values - target).square()
    if clip is not None and old_values is not None:
        clipped = old_values.detach() + (values - old_values.detach()).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - target).square())
    return 0.5 * error.masked_fill(~is_scored, 0.0).sum() / is_scored.sum().clamp(min=1)


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
    for name, term in terms.items():
        if not math.isfinite(value := float(term.detach())):
            raise NonFiniteLossError(
                f"loss term '{name}' of task '{task}' must be finite, got {value} at step {step}; "
                "the weights are unchanged: look at the inputs of this term, or lower the learning rate, and resume"
            )


def _choose(table: Mapping[str, T], name: str, parameter: str) -> T:
    if name not in table:
        raise ValueError(f"{parameter} must be one of {', '.join(table)}, got {name!r}; correct the parameter")
    return table[name]


def _check_shapes(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, is_valid: Tensor) -> None:
    if logprobs.ndim != 3 or old_logprobs.shape != logprobs.shape or is_valid.shape != logprobs.shape:
        raise ValueError(
            f"logprobs, old_logprobs and is_valid must share one shape [P, G, L], got {list(logprobs.shape)}, "
            f"{list(old_logprobs.shape)} and {list(is_valid.shape)}; pass the log-probabilities of the stored actions"
        )
    if advantages.shape != logprobs.shape[:2]:
        raise ValueError(f"advantages must have shape {list(logprobs.shape[:2])}, got {list(advantages.shape)}; give one each")
