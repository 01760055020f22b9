"""Parameters of the KL divergence from a reference, paid in the reward."""

from typing import Literal, Self

from pydantic import model_validator

from grpo_pipeline.core.objective.part import Part, Weight
from grpo_pipeline.core.objective.reference import FrozenReference, Reference


class KlInReward(Part):
    """A KL that lowers the reward of a sample (``<task>.<arm>.algorithm.kl_in_reward``).

    Under ``advantage.method: per_reward`` it lowers the advantage, after normalisation.

    Attributes:
        weight: of the KL, in units of the reward.
        estimator: of the KL of a sample, which is one number (docs/algorithms.md).
        reference: the policy that it is measured to.
    """

    weight: Weight
    estimator: Literal["k1", "k2", "k3"]
    reference: Reference = FrozenReference()

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        if self.reference.update == "copy" and self.reference.every_steps == 1:
            raise ValueError(
                "reference.every_steps must be above 1 with reference.update = copy, got 1; the policy that samples would be its "
                "own reference, and the KL always 0"
            )
        return self
