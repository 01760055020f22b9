"""Parameters of the policy that a KL is measured to: one model for each way in which it follows the trained policy."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from grpo_pipeline.core.objective.part import Kind


class FrozenReference(Kind):
    """A reference that stays as it is (``losses.kl.reference``).

    Attributes:
        update: ``frozen`` stays the initial policy, ``copy`` becomes the present one, ``ema`` follows it slowly.
        path: file of weights to begin with; null is the initial policy.
    """

    update: Literal["frozen"] = "frozen"
    path: str | None = None


class CopiedReference(Kind):
    """A reference that becomes the present policy now and then.

    Attributes:
        update: as above.
        path: as above.
        every_steps: steps between two updates.
    """

    update: Literal["copy"]
    path: str | None = None
    every_steps: int = Field(default=1, ge=1)


class AveragedReference(Kind):
    """A reference that is a moving average of the policy.

    Attributes:
        update: as above.
        path: as above.
        every_steps: as above.
        decay: share of the reference that stays in an update.
    """

    update: Literal["ema"]
    path: str | None = None
    every_steps: int = Field(default=1, ge=1)
    decay: float = Field(default=0.99, gt=0, lt=1)


def _frozen(given: Any) -> Any:
    """Freeze a reference of which nothing else is said."""
    if isinstance(given, Mapping) and given.get("update") is None:
        return {**given, "update": "frozen"}
    return given


Reference = Annotated[
    FrozenReference | CopiedReference | AveragedReference,
    Field(discriminator="update"),
    BeforeValidator(_frozen),
]
