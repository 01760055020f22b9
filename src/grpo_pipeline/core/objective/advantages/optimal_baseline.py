"""OPO: compare a sample with the mean of its group in which a long one counts more. Source: arXiv 2505.23585."""

from typing import TYPE_CHECKING, Literal

from grpo_pipeline.core.objective.advantages.whole_samples import OfSamples

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.types import Advantages, Rewards, Rollouts


class Opo(OfSamples):
    """The distance to the baseline of least variance, as OPO takes it."""

    method: Literal["opo"] = "opo"

    def compare(
        self, rewards: "Rewards", rollouts: "Rollouts", values: "Tensor | None"
    ) -> "Advantages":
        """Compare each sample with the mean of its group, weighed by length."""
        from grpo_pipeline.core.policy_gradient.optimal_baseline import optimal_baseline_advantages

        return optimal_baseline_advantages(rewards.total, rollouts.is_valid.sum(dim=2))  # [P, G]
