"""Join the rewards of a batch from the parts that were measured together."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from grpo_pipeline.rewards.group_rewards import GroupRewards, RewardFailedError


class Pending(Protocol):
    """Rewards that are being measured."""

    def result(self) -> GroupRewards:
        """Wait for them."""
        ...


class RewardShare(NamedTuple):
    """The rewards of a prompt's samples: a row of rewards that are measured together."""

    pending: Pending
    place: int


def join_rewards(
    shares: Sequence[RewardShare],
    weights: Mapping[str, float],
    *,
    shape: tuple[int, ...],
    is_counted: Tensor,
    enough: int,
    noun: str,
) -> dict[str, Tensor]:
    """Wait for the rewards of P prompts, and join their terms, float64 [P, G]; NaN (not scored) where nothing was sampled.

    Args:
        shares: of each prompt; empty without samples.
        weights: the terms.
        shape: P and G.
        is_counted: bool [P, G], the samples that could be measured.
        enough: number of these from which a term without any value counts as broken.
        noun: what a person calls one of them.

    Raises:
        RewardFailedError: if a term failed for all samples that count. Such a reward would silently train nothing.
    """
    if not shares:
        return {name: torch.full(shape, torch.nan, dtype=torch.float64) for name in weights}
    results = {id(share.pending): share.pending.result() for share in shares}
    rows = [(results[id(share.pending)], share.place) for share in shares]
    for name in weights:
        failed = torch.stack([result.is_failed[name][place] for result, place in rows])  # [P, G]
        if int(is_counted.sum()) >= enough and bool(failed[is_counted].all()):
            cause = next(result.causes[name] for result, _ in rows if name in result.causes)
            raise RewardFailedError(
                f"reward {name!r} must score at least one {noun} of a batch, got no value from {cause}; correct the function, or "
                "take the term away with null"
            )
    return {
        name: torch.stack([result.components[name][place] for result, place in rows])
        for name in weights
    }
