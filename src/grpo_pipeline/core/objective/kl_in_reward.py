"""Parameters of the KL divergence from the initial policy, paid in the reward."""

from typing import Any, ClassVar, Literal

from grpo_pipeline.core.objective.part import Part, Weight
from grpo_pipeline.core.objective.reference import FrozenReference


class KlInReward(Part):
    """A KL to the initial policy that lowers the reward of a sample (``<task>.<arm>.algorithm.kl_in_reward``).

    Under ``advantage.method: per_reward`` it lowers the advantage, after normalisation.

    Attributes:
        weight: of the KL, in units of the reward.
        estimator: of the KL of a sample, which is one number (docs/algorithms.md).
    """

    of_a_policy: ClassVar[bool] = True

    weight: Weight
    estimator: Literal["k1", "k2", "k3"]

    @property
    def reference(self) -> FrozenReference:
        """The policy that it is measured to: the initial one."""
        return FrozenReference()

    def check_arm(self, arm: Any) -> None:
        """Refuse a second KL, and credit of decisions, which have no reward of a sample."""
        if arm.losses.kl:
            raise ValueError(
                "one of losses.kl and kl_in_reward must be null, got both; a KL is paid once, to one reference: keep one"
            )
        if arm.credits_decisions:
            raise ValueError(
                f"advantage.credit must be set with kl_in_reward, got {arm.advantage.credit}; that KL lowers the reward of "
                "whole samples: use losses.kl"
            )
