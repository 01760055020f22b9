"""Join the rewards of a batch from the parts that were measured together."""

from typing import NamedTuple

import torch
from torch import Tensor

from grpo_pipeline.rewards.group_rewards import GroupRewards, RewardFailedError
from grpo_pipeline.tasks.molecules.batch import Outcomes
from grpo_pipeline.tasks.molecules.reward_params import (
    MEASURED,
    MoleculeRewardParams,
)
from grpo_pipeline.tasks.molecules.rewards import (
    PendingMoleculeRewards,
    apply_invalid_rule,
    unique_in_batch,
)

# Number of valid molecules from which a reward without any value counts as broken.
ENOUGH = 8


class RewardShare(NamedTuple):
    """The rewards of a prompt's graphs: a row of rewards that are measured together."""

    pending: PendingMoleculeRewards
    place: int


def gather_rewards(
    params: MoleculeRewardParams, outcomes: Outcomes, *, shape: tuple[int, ...]
) -> dict[str, Tensor]:
    """Wait for the rewards of P prompts, and join their components, float64 [P, G].

    Without samples, every component is NaN (not scored).

    Raises:
        RewardFailedError: if a component failed under the rule ``stop``, or a weighted component failed for all of at least 8
            valid molecules. Such a reward would silently train nothing.
    """
    if not outcomes.rewards:
        return {
            name: torch.full(shape, torch.nan, dtype=torch.float64)
            for name in params.component_weights
        }
    results = {id(share.pending): share.pending.result() for share in outcomes.rewards}
    shares = [(results[id(share.pending)], share.place) for share in outcomes.rewards]
    valid = torch.tensor(
        [[molecule.is_valid for molecule in group] for group in outcomes.molecules]
    )
    _refuse_without_any(params, shares, valid)
    components = {
        name: torch.stack([result.components[name][place] for result, place in shares])
        for name in params.component_weights
    }
    # Micro-batches were measured separately, each compared with itself alone.
    if "batch_uniqueness" in components and len(results) > 1:
        smiles = [[molecule.smiles for molecule in group] for group in outcomes.molecules]
        components["batch_uniqueness"] = apply_invalid_rule(
            unique_in_batch(smiles), valid, params.invalid
        )
    return components


def _refuse_without_any(
    params: MoleculeRewardParams, shares: list[tuple[GroupRewards, int]], is_valid: Tensor
) -> None:
    """Raise if a weighted component failed for every valid molecule, bool [P, G]; a few failures are tolerated."""
    for name in (*MEASURED, *(params.own or {})):
        if not params.component_weights.get(name) or int(is_valid.sum()) < ENOUGH:
            continue
        failed = torch.stack([result.is_failed[name][place] for result, place in shares])  # [P, G]
        if bool(failed[is_valid].all()):
            cause = next(result.causes[name] for result, _ in shares if name in result.causes)
            raise RewardFailedError(
                f"reward {name!r} must score at least one valid molecule of a batch, got no value from {cause}; correct the "
                "function, or set its weight to 0"
            )
