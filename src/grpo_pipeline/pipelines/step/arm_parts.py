"""List the parts that a step can have, and choose those of an arm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.pipelines.step.part import Count, Place, StepPart
from grpo_pipeline.pipelines.step.parts import (
    correction,
    credit,
    dynamic_sampling,
    entropy,
    kl,
    kl_in_reward,
    policy,
    reference,
    replay,
    supervised,
    target_kl,
    top_entropy,
    value,
)
from grpo_pipeline.pipelines.step.wire import Row

# In the order in which they act at a place; the terms of the loss are added in it.
PARTS = (
    dynamic_sampling.PART,
    replay.PART,
    credit.PART,
    reference.PART,
    kl_in_reward.PART,
    value.BASELINE,
    top_entropy.PART,
    correction.PART,
    supervised.PART,
    policy.PART,
    policy.SELECTION,
    entropy.PART,
    kl.PART,
    value.PART,
    target_kl.PART,
    reference.MOTION,
    entropy.STEERING,
)


@dataclass(frozen=True)
class Parts:
    """The parts of an arm: what its step has beside what every step has.

    Attributes:
        chosen: in the order of ``PARTS``.
    """

    chosen: tuple[StepPart, ...]

    @classmethod
    def of(cls, algorithm: AlgorithmParams) -> "Parts":
        """Choose the parts that these parameters ask for."""
        return cls(tuple(part for part in PARTS if part.is_in(algorithm)))

    def rows(self, place: Place) -> list[Row]:
        """List what the parts do at a place of the step, in their order."""
        return [row for part in self.chosen for row in part.rows.get(place, ())]

    @property
    def counts(self) -> dict[str, Count]:
        """The count that each term of the loss is divided by, by its name."""
        return {term: count for part in self.chosen for term, count in part.counts.items()}


# An arm whose parameters are not known, or wrong: the graph then shows every part there is.
ALL = Parts(PARTS)


def parts_of(algorithm: Mapping[str, Any] | None) -> Parts:
    """Choose the parts of a section ``algorithm``; what is wrong with it is said by the run that reads it."""
    if algorithm is None:
        return ALL
    try:
        return Parts.of(AlgorithmParams.model_validate(algorithm))
    except ValidationError:
        return ALL
