"""Parameters of the KL divergence from the initial policy, paid in the reward."""

from typing import Literal

from grpo_pipeline.core.objective.part import Part, Weight
from grpo_pipeline.core.objective.reference import FrozenReference


class KlInReward(Part):
    """A KL to the initial policy that lowers the reward of a sample (``<task>.<arm>.algorithm.kl_in_reward``).

    Under ``advantage.method: per_reward`` it lowers the advantage, after normalisation.

    Attributes:
        weight: of the KL, in units of the reward.
        estimator: of the KL of a sample, which is one number (docs/algorithms.md).
    """

    weight: Weight
    estimator: Literal["k1", "k2", "k3"]

    @property
    def reference(self) -> FrozenReference:
        """The policy that it is measured to: the initial one."""
        return FrozenReference()
