"""Put the rewards of a batch together from those that were measured with it."""

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

# From so many valid molecules on, a reward that scores none of them is broken and not unlucky.
ENOUGH = 8


class RewardShare(NamedTuple):
    """The rewards of one prompt's graphs: a row of those that are being measured together."""

    pending: PendingMoleculeRewards
    place: int


def gather_rewards(
    params: MoleculeRewardParams, outcomes: Outcomes, *, shape: tuple[int, ...]
) -> dict[str, Tensor]:
    """Wait for the rewards of P prompts and return the components, float64 [P, G].

    Where nothing was drawn there is nothing to measure: every component is NaN (not scored).

    Raises:
        RewardFailedError: if a component failed under the rule ``stop``, or a weighted component could not be measured for any
            of at least 8 valid molecules: a reward that always fails would train nothing without a word.
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
    # Micro-batches were measured apart, each beside itself alone.
    if "batch_uniqueness" in components and len(results) > 1:
        smiles = [[molecule.smiles for molecule in group] for group in outcomes.molecules]
        components["batch_uniqueness"] = apply_invalid_rule(
            unique_in_batch(smiles), valid, params.invalid
        )
    return components


def _refuse_without_any(
    params: MoleculeRewardParams, shares: list[tuple[GroupRewards, int]], is_valid: Tensor
) -> None:
    """Raise where a weighted component failed for every valid molecule, bool [P, G]; a few of them say nothing yet."""
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
