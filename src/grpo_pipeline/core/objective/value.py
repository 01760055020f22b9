"""Parameters of the term of the loss that teaches the value of a prompt."""

from pydantic import Field

from grpo_pipeline.core.objective.part import Part, Weight


class ValueLoss(Part):
    """The squared error of the value head (``<task>.<arm>.algorithm.losses.value``).

    Attributes:
        weight: of the term.
        clip: largest change of a value in one step; null for no limit.
    """

    weight: Weight
    clip: float | None = Field(default=None, gt=0)
