"""Data that the collect half of a step hands to the update half."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from grpo_pipeline.core.denominators import StepDenominators
from grpo_pipeline.core.replay import StoredGroup
from grpo_pipeline.core.types import Advantages, ReferenceScores, Rewards, Rollouts


@dataclass(frozen=True)
class Drawn:
    """Fresh rollouts, and what drawing tied groups again has cost (empty where that is off)."""

    rollouts: Rollouts
    report: Mapping[str, float]


@dataclass(frozen=True)
class Replayed:
    """Stored groups and the places of their prompts in the batch; empty where replay is off."""

    groups: tuple[StoredGroup, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Baseline:
    """Values [P] at the time of the rollout, or None where nothing reads them (Kedro stores no bare None)."""

    values: Tensor | None


@dataclass(frozen=True)
class StepShare:
    """A micro-batch's share of its step: with it the gradients of all micro-batches add up to that of the whole batch.

    Attributes:
        number: position of the micro-batch in the step, from 0.
        supervised: [T], what each part of the supervised loss counts here, as a share of the step (``Task.supervised_counts``).
        denominators: of the policy, KL, entropy and value terms; None for the control, which has none of them.
        rollout_kl: denominator of the KL to the rollout policy, or None.
    """

    number: int
    supervised: Tensor
    denominators: StepDenominators | None
    rollout_kl: Tensor | None


@dataclass(frozen=True)
class Experience:
    """One batch with everything that later update epochs must not compute again.

    Attributes:
        batch: the task's batch, targets replicated to [P, G].
        context: encoding of the batch, still attached to the encoder's graph.
        rollouts: the stored actions with the log-probabilities that the ratio is taken to.
        outcomes: what the samples led to, attached to the decoders' graph.
        rewards: named parts and their weighted total.
        advantages: [P, G], detached, importance weights included.
        reference: what the reference policy says, where a KL is paid.
        temperature: the one that sampled; the update scores at the same.
        baseline: the values at the time of the rollout, where they are read.
        importance: [P, G], 1 for fresh groups.
        resampling: what drawing tied groups again has cost.
        share: of a micro-batch in its step; None for a whole batch.
    """

    batch: Any
    context: Any
    rollouts: Rollouts
    outcomes: Any
    rewards: Rewards
    advantages: Advantages
    reference: ReferenceScores
    temperature: float
    baseline: Baseline
    importance: Tensor
    resampling: Mapping[str, float] = field(default_factory=dict)
    share: StepShare | None = None


@dataclass(frozen=True)
class LossTerms:
    """The terms of one update and their weights at this step; a term that is not part of this update is absent."""

    terms: Mapping[str, Tensor]
    weights: Mapping[str, float]
    total: Tensor
    diagnostics: Mapping[str, Tensor | float]
