"""Put the rewards of a batch together from those that were measured with it."""

from typing import NamedTuple

import torch
from torch import Tensor

from grpo_pipeline.rewards.group_rewards import GroupRewards, PendingRewards, RewardFailedError
from grpo_pipeline.tasks.dialogue.batch import Outcomes
from grpo_pipeline.tasks.dialogue.params import RewardParams


class RewardShare(NamedTuple):
    """The rewards of one prompt's replies: a row of those that are being measured together."""

    pending: PendingRewards
    place: int


def gather_rewards(
    params: RewardParams, outcomes: Outcomes, *, shape: tuple[int, ...]
) -> dict[str, Tensor]:
    """Wait for the rewards of P prompts and return the parts, float64 [P, G].

    Where nothing was written there is nothing to measure: every part is NaN (not scored), never the score of an empty reply.

    Raises:
        RewardFailedError: if a part failed under the rule ``stop``, or a weighted part could not be measured for any reply: a
            reward that always fails would train nothing without a word.
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
