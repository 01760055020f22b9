"""Parameters of the term of the loss that teaches the value of a prompt."""

from typing import Any, ClassVar

from pydantic import Field

from grpo_pipeline.core.objective.part import Part, Weight


class ValueLoss(Part):
    """The squared error of the value head (``<task>.<arm>.algorithm.losses.value``).

    Attributes:
        weight: of the term.
        clip: largest change of a value in one step; null for no limit.
    """

    of_a_policy: ClassVar[bool] = True

    weight: Weight
    clip: float | None = Field(default=None, gt=0)

    def check_arm(self, arm: Any) -> None:
        """Refuse a clip of values that have not moved."""
        if self.clip is not None and arm.update_epochs == 1:
            raise ValueError(
                f"losses.value.clip must be null with update_epochs = 1, got {self.clip}; the values have not moved when they "
                "are clipped: use more update epochs"
            )
