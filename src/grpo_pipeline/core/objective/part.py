"""Read a part of an objective from a configuration."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from grpo_pipeline.core.schedules import Schedule


class Part(BaseModel):
    """A section of parameters in which null takes away what an arm has from its base."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Whether it acts on a policy that learns from samples, so that a control cannot have it.
    of_a_policy: ClassVar[bool] = False

    def check_arm(self, arm: Any) -> None:
        """Refuse an arm in which this part cannot act.

        Args:
            arm: the ``AlgorithmParams`` that hold it.

        Raises:
            ValueError: naming the two keys, and the remedy.
        """

    @classmethod
    def _can_be_null(cls, name: str) -> bool:
        """Check whether a key is one of this section, so that null takes it away; a misspelt one is refused."""
        return name in {field.alias or key for key, field in cls.model_fields.items()}

    @model_validator(mode="before")
    @classmethod
    def _leave_out_null(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {
            name: value
            for name, value in values.items()
            if value is not None or not cls._can_be_null(name)
        }


class Kind(Part):
    """A section of one kind that is merged onto one of another kind: null also takes away keys that only the other one has."""

    @classmethod
    def _can_be_null(cls, name: str) -> bool:
        return True


def _constant(value: Any) -> Any:
    return (
        {"kind": "constant", "start": value}
        if isinstance(value, int | float) and not isinstance(value, bool)
        else value
    )


def _counts(schedule: Schedule) -> Schedule:
    lowest, highest = min(schedule.start, schedule.end), max(schedule.start, schedule.end)
    if lowest < 0:
        raise ValueError(
            f"weight must be greater than or equal to 0, got {lowest}; the signs are in the loss already"
        )
    if highest == 0:
        raise ValueError(
            "weight must be positive at some step, got 0; write null for the whole part"
        )
    return schedule


def _not_zero(value: Any) -> Any:
    if value == 0:
        raise ValueError("weight must be positive, got 0; write null for the whole part")
    return value


# A schedule, or a number that stands for a constant one.
Coefficient = Annotated[Schedule, BeforeValidator(_constant)]
# The weight of a term of the loss: at least 0, and above it at some step.
Weight = Annotated[Coefficient, AfterValidator(_counts)]
# The same of a part that weighs as much at every step.
ConstantWeight = Annotated[float, Field(gt=0), BeforeValidator(_not_zero)]


class Weighed(Part):
    """A term of a weighted sum.

    Attributes:
        weight: of the term, above 0.
    """

    weight: ConstantWeight


def weights_of(parts: BaseModel, *, without: Collection[str]) -> dict[str, float]:
    """Return the weight of each part in a section of them, by its name there; 0 of one that is absent.

    Args:
        parts: the section.
        without: fields that are no part with a weight of the sum.
    """
    fields = type(parts).model_fields.items()
    found = {
        field.alias or name: getattr(parts, name) for name, field in fields if name not in without
    }
    return {name: part.weight if part else 0.0 for name, part in found.items()}
