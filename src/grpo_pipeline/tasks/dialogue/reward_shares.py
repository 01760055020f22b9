"""Join the rewards of a batch from the parts that were measured together."""

from typing import NamedTuple

import torch
from torch import Tensor

from grpo_pipeline.rewards.group_rewards import GroupRewards, PendingRewards, RewardFailedError
from grpo_pipeline.tasks.dialogue.batch import Outcomes
from grpo_pipeline.tasks.dialogue.params import RewardParams


class RewardShare(NamedTuple):
    """The rewards of a prompt's replies: a row of rewards that are measured together."""

    pending: PendingRewards
    place: int


def gather_rewards(
    params: RewardParams, outcomes: Outcomes, *, shape: tuple[int, ...]
) -> dict[str, Tensor]:
    """Wait for the rewards of P prompts, and join their components, float64 [P, G].

    Without samples, every component is NaN (not scored), never the score of an empty reply.

    Raises:
        RewardFailedError: if a component failed under the rule ``stop``, or a weighted component failed for every reply. Such a
            reward would silently train nothing.
    """
    if not outcomes.rewards:
        return {
            name: torch.full(shape, torch.nan, dtype=torch.float64)
            for name in params.component_weights
        }
    results = {id(share.pending): share.pending.result() for share in outcomes.rewards}
    shares = [(results[id(share.pending)], share.place) for share in outcomes.rewards]
    _refuse_without_any(list(results.values()))
    return {
        name: torch.stack([result.components[name][place] for result, place in shares])
        for name in params.component_weights
    }


def _refuse_without_any(results: list[GroupRewards]) -> None:
    for name, weight in results[0].weights.items():
        if weight and all(bool(result.is_failed[name].all()) for result in results):
            cause = next(result.causes[name] for result in results if name in result.causes)
            raise RewardFailedError(
                f"reward {name!r} must score at least one reply of a batch, got no value from {cause}; correct the function, or "
                "set its weight to 0"
            )
