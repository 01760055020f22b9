"""What the collect half of a step hands to the update half."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grpo_pipeline.core.types import Advantages, Rewards, Rollouts


@dataclass(frozen=True)
class ReferenceScores:
    """What the reference policy says: log_probs [P, V], or None when the arm pays no KL (Kedro stores no bare None)."""

    log_probs: Tensor | None


@dataclass(frozen=True)
class Experience:
    """One batch with everything that later update epochs must not compute again.

    Attributes:
        batch: the task's batch, targets replicated to [P, G].
        context: encoding of the batch, still attached to the encoder's graph.
        rollouts: the stored actions with the log-probabilities they were drawn with.
        outcomes: what the samples led to, attached to the decoders' graph.
        rewards: named parts and their weighted total.
        advantages: [P, G], detached.
        reference: the reference policy's distribution, where a KL is paid.
        temperature: the one that sampled; the update scores at the same.
    """

    batch: Any
    context: Any
    rollouts: Rollouts
    outcomes: Any
    rewards: Rewards
    advantages: Advantages
    reference: ReferenceScores
    temperature: float


@dataclass(frozen=True)
class LossTerms:
    """The terms of one update and their weights at this step; a term that is not part of this update is absent."""

    terms: Mapping[str, Tensor]
    weights: Mapping[str, float]
    total: Tensor
    diagnostics: Mapping[str, Tensor | float]
