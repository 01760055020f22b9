"""Add up the named components of a reward, exclude or penalise what was not scored, subtract a KL."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from grpo_pipeline.core.types import Rewards

FailureRule = Literal["exclude", "penalty"]


def combine_rewards(components: Mapping[str, Tensor], weights: Mapping[str, float]) -> Rewards:
    """Return the components, their weights and ``total = sum_i w_i * component_i`` in float64.

    A component with weight 0 is kept for the record and adds nothing, not even its NaN; a NaN in a weighted component means that
    the sample was not scored and makes its total NaN.

    Args:
        components: name -> [P, G].
        weights: name -> weight, the same names.

    Raises:
        ValueError: as ``check_components``.
    """
    check_components(components, weights)
    # A weight of 0 skips the component: 0 * NaN would be NaN.
    weighted = [
        weight * components[name].to(torch.float64) for name, weight in weights.items() if weight
    ]
    total = sum(weighted[1:], start=weighted[0])
    refuse_infinite(f"the weighted sum of the reward components {sorted(components)}", total)
    return Rewards(components=dict(components), total=total, weights=dict(weights))


def apply_failure_rule(
    total: Tensor,
    is_failed: Tensor,
    *,
    rule: FailureRule,
    penalty: float = 0.0,
    name: str = "total",
) -> Tensor:
    """Give every failed sample a named outcome in place of whatever its reward happens to be.

        exclude:  NaN, "not scored": it leaves the statistics of its group and its advantage is exactly 0
        penalty:  this finite number: it stays in the statistics and is compared with the other samples

    An infinite sentinel has no place here: one -inf makes the mean and the deviation of its whole group NaN.

    Args:
        total: [P, G], NaN where a sample was not scored; entries of failed samples are not read.
        is_failed: bool [P, G], True where the sample could not be made or measured.
        rule: what a failed sample counts as.
        penalty: reward of a failed sample under the rule "penalty", in units of the total.
        name: of what is given, for the error.

    Returns:
        float64 [P, G], detached.

    Raises:
        ValueError: for a wrong shape, an unknown rule, a penalty that is not finite or that the rule does not use, or an
            infinite reward of a sample that did not fail.
    """
    _check_total(total)
    if is_failed.dtype != torch.bool or is_failed.shape != total.shape:
        raise ValueError(
            f"is_failed must be bool {list(total.shape)}, got {is_failed.dtype} {list(is_failed.shape)}; say it of every sample"
        )
    if rule not in ("exclude", "penalty"):
        raise ValueError(
            f"failure rule must be 'exclude' or 'penalty', got {rule!r}; correct the parameter"
        )
    if not math.isfinite(penalty):
        raise ValueError(
            f"penalty must be finite, got {penalty}; use rule 'exclude' to leave failed samples out"
        )
    if rule == "exclude" and penalty:
        raise ValueError(
            f"penalty must be 0 for rule 'exclude', got {penalty}; use rule 'penalty' to apply it"
        )
    # The failed sample's own entry is overwritten before anything reads it.
    ruled = (
        total.detach().double().masked_fill(is_failed, math.nan if rule == "exclude" else penalty)
    )
    refuse_infinite(name, ruled)
    return ruled


def subtract_kl(
    rewards: Rewards, kl_per_decision: Tensor, is_valid: Tensor, *, weight: float
) -> Rewards:
    """Charge each sample for its distance from the reference policy.

        r'[p, g] = r[p, g] - c[p, g],   c[p, g] = weight * sum over valid l of kl[p, g, l]

    Source: Ziegler et al., arXiv 1909.08593, section 2, with the per-sample estimate summed over the decisions. The
    estimate is detached: here the policy feels the penalty through the advantage only. A sample that was not scored (NaN)
    stays so. Advantages that are made of the components and not of the total read the penalty c by itself.

    Args:
        rewards: total [P, G].
        kl_per_decision: [P, G, L], for instance ``kl.k1``, nats; entries that are not valid are not read.
        is_valid: bool [P, G, L], True where a decision was really taken.
        weight: finite, at least 0, in units of the reward per nat.

    Returns:
        The same components and weights; ``total`` and ``kl_penalty`` are float64 [P, G], detached.

    Raises:
        ValueError: for a wrong shape, a negative or infinite weight, an infinite reward, or a valid estimate that is not
            finite.
    """
    total = rewards.total
    _check_total(total)
    refuse_infinite("total", total)
    if (
        is_valid.dtype != torch.bool
        or kl_per_decision.shape != is_valid.shape
        or is_valid.shape[:-1] != total.shape
    ):
        raise ValueError(
            f"kl_per_decision and bool is_valid must have shape [P, G, L] for a total of {list(total.shape)}, got "
            f"{list(kl_per_decision.shape)} and {is_valid.dtype} {list(is_valid.shape)}; give one estimate per decision"
        )
    _check_weight("the KL weight", weight)
    kl = kl_per_decision.detach().double().masked_fill(~is_valid, 0.0)
    is_bad = ~kl.isfinite()
    if bool(is_bad.any()):
        row = is_bad.nonzero()[0].tolist()
        raise ValueError(
            f"kl_per_decision must be finite where valid, got {float(kl[tuple(row)])} at {row}; check the reference"
        )
    penalty = weight * kl.sum(dim=-1)  # c: [P, G]
    return replace(rewards, total=total.detach().double() - penalty, kl_penalty=penalty)


def check_components(components: Mapping[str, Tensor], weights: Mapping[str, float]) -> None:
    """Raise unless the components share one shape [P, G], are detached, and have weights >= 0, some of them positive.

    Infinite entries are refused in weighted components; NaN means "not scored".

    Raises:
        ValueError: if names differ, a component carries a gradient or has another shape, a weight is negative or not finite, no
            weight is positive, or a weighted component holds an infinite entry.
    """
    if set(components) != set(weights):
        raise ValueError(
            f"reward weights must name the components {sorted(components)}, got {sorted(weights)}; name each component once"
        )
    attached = [name for name, component in components.items() if component.requires_grad]
    if attached:
        raise ValueError(
            f"rewards must carry no gradient, got one in {attached}; detach them in Task.reward"
        )
    for name, weight in weights.items():
        _check_weight(f"the reward weight of {name!r}", weight)
    if not any(weights.values()):
        raise ValueError(
            f"some reward weight must be positive, got {dict(weights)}; give one component a weight"
        )
    shapes = {name: list(component.shape) for name, component in components.items()}
    first = next(iter(shapes.values()))
    if len(first) != 2 or any(shape != first for shape in shapes.values()):
        raise ValueError(
            f"reward components must share one shape [P, G], got {shapes}; give one reward per sample"
        )
    for name, weight in weights.items():
        if weight:
            refuse_infinite(f"reward component {name!r}", weight * components[name].double())


def _check_total(total: Tensor) -> None:
    if total.ndim != 2:
        raise ValueError(
            f"total must have shape [P, G], got {list(total.shape)}; call to_groups first"
        )


def _check_weight(name: str, weight: float) -> None:
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(
            f"{name} must be finite and >= 0, got {weight}; change the sign of the reward instead, or correct it"
        )


def refuse_infinite(name: str, rewards: Tensor) -> None:
    """Raise a ValueError for an infinite entry of rewards [P, G]; NaN means "not scored"."""
    is_infinite = rewards.isinf()
    if bool(is_infinite.any()):
        row = int(is_infinite.nonzero()[0, 0])
        raise ValueError(
            f"{name} must be finite or NaN (not scored), got an infinite one for prompt {row}; use NaN or a penalty"
        )
