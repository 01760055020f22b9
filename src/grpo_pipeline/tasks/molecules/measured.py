"""Put the rewards of a batch together from those that were measured with it; what stands for graphs that are not there."""

import torch
from torch import Tensor

from grpo_pipeline.tasks.group_rewards import GroupRewards, RewardFailedError
from grpo_pipeline.tasks.molecules.batch import Outcomes
from grpo_pipeline.tasks.molecules.entries import GraphPrompts, pair_index
from grpo_pipeline.tasks.molecules.reward_params import MEASURED, MoleculeRewardParams
from grpo_pipeline.tasks.molecules.rewards import apply_invalid_rule, unique_in_batch
from grpo_pipeline.tasks.molecules.trajectories import Trajectories

# From so many valid molecules on, a reward that scores none of them is broken and not unlucky.
ENOUGH = 8


def nothing_drawn(prompts: GraphPrompts, group_size: int) -> Trajectories:
    """Return G trajectories without a step for each prompt: the samples of an arm that learns from molecules alone."""
    shape, device = (len(prompts.sizes), group_size), prompts.sizes.device
    actions = torch.zeros(*shape, 0, dtype=torch.int64, device=device)
    nodes = torch.zeros(*shape, 1, prompts.nodes, dtype=torch.uint8, device=device)
    pairs = nodes.new_zeros(*shape, 1, pair_index(prompts.nodes).shape[1])
    return Trajectories(
        actions=actions,
        logprobs=torch.zeros(*shape, 0, device=device),
        is_valid=torch.zeros_like(actions, dtype=torch.bool),
        atoms=nodes,
        charges=nodes.clone(),
        bonds=pairs,
        sizes=prompts.sizes,
        conditions=prompts.conditions,
    )


def gather_rewards(params: MoleculeRewardParams, outcomes: Outcomes, *, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Wait for the rewards of P prompts and return the parts, float64 [P, G].

    Where nothing was drawn there is nothing to measure: every part is NaN (not scored).

    Raises:
        RewardFailedError: if a part failed under the rule ``stop``, or a weighted part could not be measured for any of at
            least 8 valid molecules: a reward that always fails would train nothing without a word.
    """
    if not outcomes.rewards:
        return {name: torch.full(shape, torch.nan, dtype=torch.float64) for name in params.part_weights}
    results = {id(share.pending): share.pending.result() for share in outcomes.rewards}
    shares = [(results[id(share.pending)], share.place) for share in outcomes.rewards]
    valid = torch.tensor([[molecule.is_valid for molecule in group] for group in outcomes.molecules])
    _refuse_without_any(params, shares, valid)
    parts = {name: torch.stack([result.parts[name][place] for result, place in shares]) for name in params.part_weights}
    if "batch_uniqueness" in parts and len(results) > 1:  # micro-batches were measured apart, each beside itself alone
        smiles = [[molecule.smiles for molecule in group] for group in outcomes.molecules]
        parts["batch_uniqueness"] = apply_invalid_rule(unique_in_batch(smiles), valid, params.invalid)
    return parts


def _refuse_without_any(params: MoleculeRewardParams, shares: list[tuple[GroupRewards, int]], is_valid: Tensor) -> None:
    """Raise where a weighted part failed for every valid molecule, bool [P, G]; a few of them say nothing yet."""
    for name in (*MEASURED, *(params.own or {})):
        if not params.part_weights.get(name) or int(is_valid.sum()) < ENOUGH:
            continue
        failed = torch.stack([result.is_failed[name][place] for result, place in shares])
        if bool(failed[is_valid].all()):
            cause = next(result.causes[name] for result, _ in shares if name in result.causes)
            raise RewardFailedError(
                f"reward {name!r} must score at least one valid molecule of a batch, got no value from {cause}; correct the "
                "function, or set its weight to 0"
            )
