"""Parameters of the bonus for entropy."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Part, Weight


class EntropyTarget(Part):
    """Steer the weight of the entropy towards a target in nats (``target`` of ``losses.entropy``).

    Attributes:
        nats: entropy that is aimed at.
        learning_rate: change of the weight per batch and nat of distance.
        minimum: smallest weight.
        maximum: largest weight.
    """

    nats: float = Field(gt=0)
    learning_rate: float = Field(gt=0)
    minimum: float = Field(ge=0)
    maximum: float = Field(gt=0)

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.minimum >= self.maximum:
            raise ValueError(
                f"minimum must be below maximum, got {self.minimum} and {self.maximum}; exchange them"
            )
        return self


class EntropyBonus(Part):
    """The entropy of the policy, which the loss rewards (``<task>.<arm>.algorithm.losses.entropy``).

    Attributes:
        weight: of the bonus.
        target: steers the weight; null keeps it as given.
    """

    of_a_policy: ClassVar[bool] = True

    weight: Weight
    target: EntropyTarget | None = None
