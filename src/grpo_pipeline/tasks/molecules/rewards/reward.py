"""Put the terms of the reward together, for groups of generated molecules: named components [P, G].

How this differs from public versions: invalid molecules are in every statistic, under a stated rule. Uniqueness is a property of
each sample relative to the others, so that it does not cancel inside the group.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from grpo_pipeline.rewards.group_rewards import GroupRewards, PendingRewards, Subjects, check_groups
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.rewards.shares import join_rewards
from grpo_pipeline.tasks.molecules.batch import Outcomes
from grpo_pipeline.tasks.molecules.graphs.decoding import Decoded
from grpo_pipeline.tasks.molecules.rewards.novelty import novelty
from grpo_pipeline.tasks.molecules.rewards.params import MoleculeReward
from grpo_pipeline.tasks.molecules.rewards.uniqueness import unique_in_batch, unique_in_group
from grpo_pipeline.tasks.molecules.rewards.validity import apply_invalid_rule, validity

# Number of valid molecules from which a reward without any value counts as broken.
ENOUGH = 8


class PendingMoleculeRewards:
    """Rewards that are being measured; the next batch can be sampled until ``result`` is asked for."""

    def __init__(
        self,
        params: MoleculeReward,
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
        }
        never = torch.zeros_like(self._is_valid)
        return GroupRewards(
            components={name: components[name] for name in self._params.weights},
            weights=self._params.weights,
            is_failed={name: measured.is_failed.get(name, never) for name in self._params.weights},
            causes=measured.causes,
        )


def submit_rewards(
    params: MoleculeReward,
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
        params.weights,
        pool.failure,
        futures=futures,
        subjects=Subjects(smiles, noun="molecule", places=places),
    )
    # Components that need no process are computed here, while the others run.
    known_now: dict[str, Callable[[], Tensor]] = {
        "validity": partial(validity, is_valid),
        "novelty": partial(novelty, smiles, known),
        "uniqueness": partial(unique_in_group, smiles),
        "batch_uniqueness": partial(unique_in_batch, smiles),
    }
    at_once = {name: compute() for name, compute in known_now.items() if name in params.weights}
    return PendingMoleculeRewards(params, pending, at_once, is_valid)


def gather_rewards(
    params: MoleculeReward, outcomes: Outcomes, *, shape: tuple[int, ...]
) -> dict[str, Tensor]:
    """Wait for the rewards of P prompts, and join their components, float64 [P, G]; see ``join_rewards``.

    Raises:
        RewardFailedError: if a component failed under the rule ``stop``, or for all of at least 8 valid molecules.
    """
    is_valid = torch.tensor(
        [[molecule.is_valid for molecule in group] for group in outcomes.molecules]
    )
    components = join_rewards(
        outcomes.rewards,
        params.weights,
        shape=shape,
        is_counted=is_valid,
        enough=ENOUGH,
        noun="valid molecule",
    )
    # Micro-batches were measured separately, each compared with itself alone.
    if params.batch_uniqueness and len({id(share.pending) for share in outcomes.rewards}) > 1:
        smiles = [[molecule.smiles for molecule in group] for group in outcomes.molecules]
        components["batch_uniqueness"] = apply_invalid_rule(
            unique_in_batch(smiles), is_valid, params.invalid
        )
    return components
