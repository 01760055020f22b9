"""Credit single decisions, or turns, with what they have contributed to the reward of their sample."""

import math
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from grpo_pipeline.core.types import Credits, Rewards

Credit = Literal["leave_one_out", "marginal", "marginal_to_go"]


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
