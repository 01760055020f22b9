"""Compute rewards of groups of generated molecules: named components [P, G].

How this differs from public versions: invalid molecules are in every statistic, under a stated rule. Uniqueness is a property of
each sample relative to the others, so that it does not cancel inside the group. It compares with the sample's group
(``uniqueness``) or with all groups that are scored together (``batch_uniqueness``), because groups of the same size repeat each
other.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from grpo_pipeline.core.rewards import apply_failure_rule
from grpo_pipeline.rewards.group_rewards import GroupRewards, PendingRewards, Subjects, check_groups
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.molecules.graphs.decoding import Decoded
from grpo_pipeline.tasks.molecules.reward_params import (
    InvalidParams,
    MoleculeRewardParams,
)


class PendingMoleculeRewards:
    """Rewards that are being measured; the next batch can be sampled until ``result`` is asked for."""

    def __init__(
        self,
        params: MoleculeRewardParams,
        pending: PendingRewards,
        at_once: dict[str, Tensor],
        is_valid: Tensor,
    ) -> None:
        """Store the pending measurements, the known components, and the valid molecules, bool [P, G]."""
        self._params, self._pending = params, pending
        self._at_once, self._is_valid = at_once, is_valid

    def done(self) -> bool:
        """Check whether ``result`` would return at once."""
        return self._pending.done()

    def result(self) -> GroupRewards:
        """Wait for all components and apply the rules for failures and for molecules that are not valid.

        Raises:
            RewardFailedError: if a component could not be measured and the rule is ``stop``.
            RewardPoolError: if a process cannot be started or the pool was closed.
        """
        measured = self._pending.result()
        # Validity is scored for every graph, other components for valid molecules; the rule decides the value of an invalid one.
        components = {
            name: part
            if name == "validity"
            else apply_invalid_rule(part, self._is_valid, self._params.invalid)
            for name, part in {**self._at_once, **measured.components}.items()
            if name in self._params.component_weights
        }
        never = torch.zeros_like(self._is_valid)
        return GroupRewards(
            components={name: components[name] for name in self._params.component_weights},
            weights=self._params.component_weights,
            is_failed={
                name: measured.is_failed.get(name, never) for name in self._params.component_weights
            },
            causes=measured.causes,
        )


def submit_rewards(
    params: MoleculeRewardParams,
    pool: RewardPool,
    *,
    molecules: Sequence[Sequence[Decoded]],
    known: Collection[str],
    references: Sequence[Sequence[str]] | None = None,
) -> PendingMoleculeRewards:
    """Begin to measure every component of every valid molecule, and return at once.

    Args:
        params: components, weights, rules.
        pool: measures canonical SMILES; its values do not depend on its number of processes.
        molecules: P groups of G decoded graphs.
        known: canonical SMILES of the training set: a molecule among them is not novel.
        references: P lists of texts for user-defined rewards, such as the prompt's target; None for empty ones.

    Raises:
        ValueError: if groups differ in size or are empty, or the number of references is not P.
    """
    check_groups(molecules, name="molecules")
    if references is not None and len(references) != len(molecules):
        raise ValueError(
            f"references must have one row per group, got {len(references)} for {len(molecules)}; give each its own"
        )
    # Only valid molecules are measured; ``places`` says where their values belong among the P * G samples.
    smiles = [[molecule.smiles for molecule in group] for group in molecules]
    is_valid = torch.tensor([[molecule.is_valid for molecule in group] for group in molecules])
    places = np.flatnonzero(is_valid.flatten().numpy())  # [valid]
    flat = [text for group in smiles for text in group]
    texts: Sequence[Sequence[str]] = [()] * len(smiles) if references is None else references
    subjects = [flat[place] for place in places.tolist()]
    beside = [texts[place // len(smiles[0])] for place in places.tolist()]
    futures = {
        name: pool.submit(measure, subjects, beside) for name, measure in params.measures.items()
    }
    pending = PendingRewards(
        params.component_weights,
        params.failure,
        futures=futures,
        subjects=Subjects(smiles, noun="molecule", places=places),
    )
    # Components that need no process are computed here, while the others run.
    known_now: dict[str, Callable[[], Tensor]] = {
        "validity": is_valid.double,
        "novelty": partial(novelty, smiles, known),
        "uniqueness": partial(unique_in_group, smiles),
        "batch_uniqueness": partial(unique_in_batch, smiles),
    }
    at_once = {
        name: compute() for name, compute in known_now.items() if name in params.component_weights
    }
    return PendingMoleculeRewards(params, pending, at_once, is_valid)


def novelty(smiles: Sequence[Sequence[str]], known: Collection[str]) -> Tensor:
    """Score 1 for a molecule that is not among the known ones, else 0; float64 [P, G]."""
    return torch.tensor(
        [[float(text not in known) for text in group] for group in smiles], dtype=torch.float64
    )


def unique_in_group(smiles: Sequence[Sequence[str]]) -> Tensor:
    """Score 1 for a molecule that occurs once in its group, else 0, float64 [P, G].

        u[p, g] = |{m[p, :]}| - |{m[p, :] without g}|   =   1 if no other sample of the group is the same molecule, else 0

    A bonus for the whole group would be the same for all its samples and cancel in their comparison.
    """
    # codes: of all P * G molecules, one after the other.
    kinds, codes = np.unique(np.asarray(smiles, dtype=np.str_), return_inverse=True)
    # A separate code for each molecule and group, [P, G], so that a single count serves all groups.
    places = codes.reshape(len(smiles), -1) + len(kinds) * np.arange(len(smiles))[:, None]
    return torch.from_numpy((np.bincount(places.ravel())[places] == 1).astype(np.float64))


def unique_in_batch(smiles: Sequence[Sequence[str]]) -> Tensor:
    """Score 1 for a molecule that occurs once in all groups, else 0; float64 [P, G]."""
    return unique_in_group([[text for group in smiles for text in group]]).reshape(len(smiles), -1)


def apply_invalid_rule(component: Tensor, is_valid: Tensor, invalid: InvalidParams) -> Tensor:
    """Apply the rule for invalid molecules to a component; [P, G] and bool [P, G] -> float64 [P, G].

    ``group_mean`` gives an invalid molecule the mean of its group's scored valid molecules, or 0 in a group without any. A
    component then compares valid molecules only with each other; only the component ``validity`` rewards being valid.
    """
    if invalid.rule == "group_mean":
        valid = component.double().masked_fill(~is_valid, torch.nan)
        mean = valid.nanmean(dim=1, keepdim=True).masked_fill(
            ~is_valid.any(dim=1, keepdim=True), 0.0
        )  # [P, 1]
        return torch.where(is_valid, valid, mean)
    return apply_failure_rule(
        component, ~is_valid, rule=invalid.rule, penalty=invalid.penalty or 0.0
    )
