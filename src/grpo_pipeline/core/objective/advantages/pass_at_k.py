"""pass@k: score a sample by what it adds to the best of k. Source: arXiv 2505.15201."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grpo_pipeline.core.objective.advantages.whole_samples import OfSamples

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.types import Advantages, Rewards, Rollouts


class PassAtK(OfSamples):
    """Score of a sample: how much it adds to the best of k samples of its group.

    Attributes:
        k: samples of which the best counts, at most ``training.group_size``.
    """

    method: Literal["pass_at_k"] = "pass_at_k"
    k: int = Field(ge=2)

    def compare(
        self, rewards: "Rewards", rollouts: "Rollouts", values: "Tensor | None"
    ) -> "Advantages":
        """Compare the best of all subsets with and without each sample."""
        from grpo_pipeline.core.policy_gradient.pass_at_k import pass_at_k_advantages

        return pass_at_k_advantages(rewards.total, k=self.k)
