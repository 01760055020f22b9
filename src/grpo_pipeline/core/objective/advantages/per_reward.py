"""GDPO: compare each part of the reward for itself. Source: arXiv 2601.05242."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grpo_pipeline.core.objective.advantages.advantage import Std
from grpo_pipeline.core.objective.advantages.whole_samples import OfSamples

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.types import Advantages, Rewards, Rollouts


class PerReward(OfSamples):
    """The weighted sum of what each part of the reward says of a sample, whitened over the batch.

    Attributes:
        std: ``sample`` divides by n - 1, ``population`` by n.
        eps: added to both deviations, in units of the part, then of the sum.
    """

    method: Literal["per_reward"] = "per_reward"
    std: Std = "sample"
    eps: float = Field(default=1e-4, ge=0, allow_inf_nan=False)

    def compare(
        self, rewards: "Rewards", rollouts: "Rollouts", values: "Tensor | None"
    ) -> "Advantages":
        """Compare the parts; a KL that is paid in the reward is in no part, and is paid after the normalisation."""
        import torch

        from grpo_pipeline.core.policy_gradient.advantage_changes import subtract_penalty

        advantages = self._scores(rewards, whiten=True)
        if rewards.kl_penalty is None:
            return advantages
        # A sample pays its KL if at least one weighted part scored it.
        scored = [
            ~part.isnan() for name, part in rewards.components.items() if rewards.weights[name]
        ]
        return subtract_penalty(advantages, rewards.kl_penalty, torch.stack(scored).any(dim=0))

    def signal(self, rewards: "Rewards") -> "Tensor":
        """Return the scores before they are whitened: parts may differ where their sum ties."""
        return self._scores(rewards, whiten=False).values

    def _scores(self, rewards: "Rewards", *, whiten: bool) -> "Advantages":
        from grpo_pipeline.core.policy_gradient.per_reward import per_reward_advantages

        return per_reward_advantages(
            rewards.components, rewards.weights, std=self.std, eps=self.eps, whiten=whiten
        )
