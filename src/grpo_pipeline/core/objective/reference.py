"""Parameters of the policy that a KL is measured to."""

from typing import Literal

from pydantic import Field

from grpo_pipeline.core.objective.part import Part


class ReferenceParams(Part):
    """The policy that the KL is measured to (``reference`` of ``losses.kl`` or ``kl_in_reward``).

    Attributes:
        update: ``frozen`` stays the initial policy, ``copy`` becomes the present one, ``ema`` follows it slowly.
        every_steps: steps between two updates.
        decay: share of the reference that ``ema`` keeps in an update.
        path: file of weights to begin with; null is the initial policy.
    """

    update: Literal["frozen", "copy", "ema"] = "frozen"
    every_steps: int = Field(default=1, ge=1)
    decay: float = Field(default=0.99, gt=0, lt=1)
    path: str | None = None
