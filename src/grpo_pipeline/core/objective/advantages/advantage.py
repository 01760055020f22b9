"""Describe what every comparison of samples has: whom it credits, its baseline, a bound, the share of samples that teach."""

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Kind

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.types import Advantages, Rewards, Rollouts

Std = Literal["sample", "population"]


class Advantage(Kind):
    """How rewards become advantages (``<task>.<arm>.algorithm.advantage``).

    Attributes:
        method: what a sample is compared with.
        credit: what a decision is credited with: the reward of its whole sample (``set``); its own part of it, for a task that
            can reward parts of a sample, see ``core.credit.credit_decisions``; or what is paid from its turn on (``to_go``), for
            a task that pays by turns, see ``core.credit.credit_turns``.
        baseline: the mean of the group, or the predicted value of the prompt.
        clip: largest absolute advantage, before weights of prompts and of replay; null for no bound.
        top_k_ratio: share of the best samples of a group that teach.
    """

    method: str
    # What is off is left out of dumps, and so of digests.
    credit: Literal["set", "leave_one_out", "marginal", "marginal_to_go", "to_go"] = Field(
        default="set", exclude_if=lambda credit: credit == "set"
    )
    baseline: Literal["group", "value"] = "group"
    clip: float | None = Field(default=None, gt=0, exclude_if=lambda clip: clip is None)
    top_k_ratio: float = Field(default=1.0, gt=0, le=1)

    def compare(
        self, rewards: "Rewards", rollouts: "Rollouts", values: "Tensor | None"
    ) -> "Advantages":
        """Return the advantage of each sample, [P, G], or of each credited decision, [P, G, L].

        Args:
            rewards: of the samples.
            rollouts: the samples.
            values: [P], the predicted rewards of the prompts, of an arm that predicts them.
        """
        raise NotImplementedError

    def signal(self, rewards: "Rewards") -> "Tensor":
        """Return [P, n]; a group whose n values tie teaches nothing."""
        return rewards.total

    def check_arm(self, arm: Any) -> None:
        """Refuse an untrained value as a baseline, and credit of decisions that have no ratio of their own."""
        if self.baseline == "value" and arm.losses.value is None:
            raise ValueError(
                "losses.value must be given with advantage.baseline = value, got null; an untrained value is noise"
            )
        if self.credit != "set" and (level := arm.losses.policy.ratio_level) != "decision":
            raise ValueError(
                f"advantage.credit must be set with losses.policy.ratio_level = {level}, got {self.credit}; a whole sample has "
                "one ratio there: use ratio_level = decision"
            )

    @model_validator(mode="after")
    def _check_credit(self) -> Self:
        if self.credit != "set" and self.baseline == "value":
            raise ValueError(
                f"credit must be set with baseline = value, got {self.credit}; a value is of a whole sample: use baseline = group"
            )
        return self
