"""Parameters of training again on stored groups."""

from typing import ClassVar

from pydantic import Field

from grpo_pipeline.core.objective.part import Part


class ReplayParams(Part):
    """Train again on stored groups that taught something (``<task>.<arm>.algorithm.replay``).

    Attributes:
        capacity: stored groups at most.
        max_age_steps: an older group is dropped.
        share: of a batch that is replayed.
        importance_cap: largest importance weight of a replayed sample.
    """

    of_a_policy: ClassVar[bool] = True

    capacity: int = Field(ge=1)
    max_age_steps: int = Field(ge=1)
    share: float = Field(gt=0, lt=1)
    importance_cap: float = Field(ge=1)
