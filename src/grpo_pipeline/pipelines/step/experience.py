"""Hold the experience of a batch, the terms of its loss, and the reports of its updates."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from grpo_pipeline.core.diagnostics.gradient_report import Gradient
from grpo_pipeline.core.training.stored_groups import StoredGroup
from grpo_pipeline.core.types import Advantages, ReferenceScores, Rewards, Rollouts, Scores


@dataclass(frozen=True)
class Replayed:
    """Stored groups and the places of their prompts in the batch; empty without replay."""

    groups: tuple[StoredGroup, ...] = ()
    positions: tuple[int, ...] = ()


NOTHING_REPLAYED = Replayed()


@dataclass(frozen=True)
class StepShare:
    """A micro-batch's share of its step: with it the gradients of all micro-batches add up to that of the whole batch.

    Attributes:
        number: position of the micro-batch in the step, from 0.
        supervised: [T], what each part of the supervised loss counts here, as a share of the step (``Task.supervised_counts``).
        denominators: term -> what it counts in the whole step, at least 1; float64 scalars.
    """

    number: int
    supervised: Tensor
    denominators: Mapping[str, Tensor]


@dataclass(frozen=True)
class Experience:
    """One batch with everything that later update epochs must not compute again.

    Attributes:
        batch: the task's batch, targets replicated to [P, G].
        prompts: the batch as it was made, without the axis G: what is encoded again.
        context: encoding of the batch, still attached to the encoder's graph.
        rollouts: the stored actions with the log-probabilities that the ratio is taken to.
        outcomes: what the samples led to, attached to the decoders' graph.
        rewards: named parts and their weighted total.
        advantages: [P, G], or [P, G, L] of credited decisions, detached, importance weights included.
        temperature: the one that sampled; the update scores at the same.
        reference: what the reference policy says, where a KL is paid.
        values: [P], at the time of the rollout, where they are read.
        importance: [P, G], 1 for fresh groups, of an arm that replays stored ones.
        mismatch: float64 [P, G, L], log-probabilities under the policy less those of the engine, of an arm that corrects.
        selected: bool [P, G, L], decisions that the surrogate treats otherwise, of an arm whose surrogate selects.
        resampling: what drawing tied groups again has cost, of an arm that does.
        share: of a micro-batch in its step; None for a whole batch.
    """

    batch: Any
    context: Any
    rollouts: Rollouts
    outcomes: Any
    rewards: Rewards
    advantages: Advantages
    temperature: float
    prompts: Any
    reference: ReferenceScores = field(default_factory=ReferenceScores)
    values: Tensor | None = None
    importance: Tensor | None = None
    mismatch: Tensor | None = None
    selected: Tensor | None = None
    resampling: Mapping[str, float] = field(default_factory=dict)
    share: StepShare | None = None


@dataclass(frozen=True)
class Report:
    """The work of a piece of an update, without a graph: its share of each term, the scores, gradients of single terms.

    Attributes:
        terms: name -> scalar.
        weights: name -> weight at this step.
        scores: of the piece's samples; None of an arm that learns from none.
        gradients: of the terms, at steps that report them.
    """

    terms: Mapping[str, Tensor]
    weights: Mapping[str, float]
    scores: Scores | None
    gradients: Mapping[str, Gradient]


@dataclass(frozen=True)
class LossTerms:
    """The terms of one update and their weights at this step; a term that is not part of this update is absent."""

    terms: Mapping[str, Tensor]
    weights: Mapping[str, float]
    total: Tensor


def collect_experience(*, batch: Any, replicated: Any, **values: Any) -> Experience:
    """Bundle what the update epochs replay: the fields of ``Experience``, as far as the arm has them."""
    return Experience(batch=replicated, prompts=batch, **values)


def mean_returns(scores: Scores, experience: Experience) -> Tensor:
    """Return the mean reward of each prompt, [P], in the precision of the scores."""
    return experience.rewards.total.nanmean(1).to(scores.logprobs.dtype)
