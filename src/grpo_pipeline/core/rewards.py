"""Add up the named components of a reward, exclude or penalise what was not scored, subtract a KL, credit single decisions."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from grpo_pipeline.core.types import Credits, Rewards

FailureRule = Literal["exclude", "penalty"]
Credit = Literal["leave_one_out", "marginal", "marginal_to_go"]


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


def kept_decisions(credit: Credit, length: int, *, device: torch.device | None = None) -> Tensor:
    """Return which decisions each sub-sample keeps, bool [M, L] with M = L: all but the m-th, or the first m.

    Raises:
        ValueError: for an unknown name.
    """
    if credit not in get_args(Credit):
        raise ValueError(
            f"credit must be one of {', '.join(get_args(Credit))}, got {credit!r}; correct the parameter"
        )
    if credit == "leave_one_out":
        return ~torch.eye(length, dtype=torch.bool, device=device)
    return torch.ones(length, length, dtype=torch.bool, device=device).tril(-1)


def credit_decisions(
    rewards: Rewards, of_subsets: Tensor, is_valid: Tensor, *, credit: Credit
) -> Rewards:
    """Credit each decision with what the sample's reward owes to it; S is the sample, S_l its first l decisions.

        leave_one_out:    c_l = R(S) - R(S without l)         difference rewards: Wolpert and Tumer 2001; as the counterfactual
                                                              baseline of COMA, arXiv 1705.08926, with an empty default action
        marginal:         c_l = R(S_l) - R(S_l-1)             one term of a Shapley value, for the order in which S was drawn
        marginal_to_go:   c_l = sum_{j >= l} marginal_j = R(S) - R(S_l-1)

    Only ``marginal_to_go`` keeps the policy gradient unbiased whatever the policy: R(S_l-1) is a baseline that decision l
    cannot change. Leaving l out keeps the later decisions, which were drawn knowing l; ``marginal`` is blind to what l does to
    them (docs/algorithms.md; test_credit_is_unbiased_where_it_is_said_to_be).

    Args:
        rewards: of the samples, total [P, G].
        of_subsets: [P, G, L], rewards of what ``kept_decisions`` keeps; NaN where not scored.
        is_valid: bool [P, G, L], True where a decision was really taken; the others contribute 0.
        credit: a name of the table.

    Returns:
        The same rewards with ``credits``.

    Raises:
        ValueError: for a wrong shape.
    """
    whole = rewards.total.detach().double()[..., None]  # R(S): [P, G, 1]
    if of_subsets.shape != is_valid.shape or is_valid.shape[:-1] != rewards.total.shape:
        raise ValueError(
            f"of_subsets and is_valid must have shape [P, G, L] for a total of {list(rewards.total.shape)}, got "
            f"{list(of_subsets.shape)} and {list(is_valid.shape)}; give one reward per decision"
        )
    # without: R(S without l), or R(S_l-1) for the marginal credits; reached: what it is compared with, R(S) or R(S_l).
    without = of_subsets.detach().double()
    # reached: [P, G, L] for ``marginal``, else [P, G, 1].
    reached = torch.cat([without[..., 1:], whole], dim=-1) if credit == "marginal" else whole
    values = (reached - without).where(is_valid, 0.0).masked_fill(whole.isnan(), math.nan)
    return replace(rewards, credits=Credits(values, is_valid))


def credit_turns(rewards: Rewards, before: Tensor, turns: Tensor) -> Rewards:
    """Credit each turn of a sample with what is paid from it on; R is the reward of the sample, r_u what turn u is paid.

        to_go:   c_t = R - sum_{u < t} r_u

    What R holds beside the r_u is of the whole sample, and counts for every turn. The policy gradient stays unbiased: what was
    paid before turn t is a baseline that its decisions cannot change (test_credit_of_turns_has_the_gradient_of_the_reward).

    Args:
        rewards: of the samples, total [P, G].
        before: [P, G, T], the sum over u < t, as it counts in the total; not read of turns that a sample does not have.
        turns: int64 [P, G, L], the turn 0..T-1 of each decision, -1 where none was taken.

    Returns:
        The same rewards with ``credits``.

    Raises:
        ValueError: for a wrong shape.
    """
    total = rewards.total.detach().double()
    if not before.shape[:-1] == turns.shape[:-1] == total.shape:
        raise ValueError(
            f"before and turns must have shapes [P, G, T] and [P, G, L] for a total of {list(total.shape)}, got "
            f"{list(before.shape)} and {list(turns.shape)}; give each sample its own"
        )
    numbers = torch.arange(before.shape[-1], device=turns.device)
    has_turn = (turns[..., None] == numbers).any(dim=2)  # [P, G, L, T] -> [P, G, T]
    to_go = total[..., None] - before.detach().double()  # R - ...: [P, G, T]
    values = to_go.where(has_turn, 0.0).masked_fill(total.isnan()[..., None], math.nan)
    return replace(rewards, credits=Credits(values, has_turn, turns))


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
