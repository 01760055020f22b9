"""Compare a sample with a baseline of its prompt: the mean of the group, of the others in it, or a predicted value."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from grpo_pipeline.core.objective.advantages.advantage import Advantage, Std

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.types import Advantages, Credits, Rewards, Rollouts


class Compared(Advantage):
    """The distance to a baseline, by the formulas of ``core.policy_gradient.advantages``."""

    def compare(
        self, rewards: "Rewards", rollouts: "Rollouts", values: "Tensor | None"
    ) -> "Advantages":
        """Compare each sample with its baseline, or each decision with those of its group."""
        from grpo_pipeline.core.policy_gradient.advantages import compute_advantages

        if rewards.credits is not None:
            return self._of_decisions(rewards.credits)
        predicted = values if self.baseline == "value" else None
        return compute_advantages(rewards.total, values=predicted, **self._formula())

    def signal(self, rewards: "Rewards") -> "Tensor":
        """Return the rewards, or the advantages of all decisions of a prompt, [P, G * L]: any of them may differ."""
        if rewards.credits is None:
            return rewards.total
        return self._of_decisions(rewards.credits).values.flatten(1)

    def _of_decisions(self, credits: "Credits") -> "Advantages":
        from grpo_pipeline.core.policy_gradient.decision_advantages import decision_advantages

        return decision_advantages(credits, **self._formula())

    def _formula(self) -> dict[str, Any]:
        return {"method": self.method}


class Scaled(Compared):
    """The distance to a baseline, divided by a deviation.

    Attributes:
        std: ``sample`` divides by n - 1, ``population`` by n.
        eps: added to the deviation, in units of the reward.
    """

    std: Std = "sample"
    eps: float = Field(default=1e-4, ge=0, allow_inf_nan=False)

    def _formula(self) -> dict[str, Any]:
        return {"method": self.method, "std": self.std, "eps": self.eps}


class Group(Scaled):
    """GRPO: divided by the deviation of the group. Source: arXiv 2402.03300, section 4.1."""

    method: Literal["group"] = "group"


class Batch(Scaled):
    """Divided by the deviation of the batch. Source: arXiv 2508.08221."""

    method: Literal["batch"] = "batch"


class ReinforcePlusPlus(Scaled):
    """REINFORCE++ with a baseline: divided by the deviation of the distances. Source: arXiv 2501.03262."""

    method: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    baseline: Literal["group"] = "group"


class MeanOnly(Compared):
    """Dr. GRPO: not divided. Source: arXiv 2503.20783."""

    method: Literal["mean_only"] = "mean_only"


class LeaveOneOut(Compared):
    """RLOO: the mean of the others. Source: arXiv 2402.14740."""

    method: Literal["leave_one_out"] = "leave_one_out"
    baseline: Literal["group"] = "group"
