"""Parameters of the advantage: how rewards are compared."""

from typing import Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Part


class AdvantageParams(Part):
    """How rewards become advantages (``<task>.<arm>.algorithm.advantage``).

    Attributes:
        method: the baseline and the scale, see ``core.policy_gradient.advantages``.
        credit: what a decision is credited with: the reward of its whole sample (``set``), or its own part of it, for a task that
            can reward parts of a sample, see ``core.rewards.credit_decisions``.
        std: ``sample`` divides by n - 1, ``population`` by n; read where the method divides by a deviation.
        baseline: the mean of the group, or the predicted value of the prompt.
        top_k_ratio: share of the best samples of a group that teach.
        eps: added to every deviation, in units of the reward; read where ``std`` is.
    """

    method: Literal["group", "leave_one_out", "mean_only", "batch", "per_reward"]
    std: Literal["sample", "population"]
    # Left out of dumps where it is off, and so of digests.
    credit: Literal["set", "leave_one_out", "marginal", "marginal_to_go"] = Field(
        default="set", exclude_if=lambda credit: credit == "set"
    )
    baseline: Literal["group", "value"] = "group"
    top_k_ratio: float = Field(default=1.0, gt=0, le=1)
    eps: float = Field(default=1e-4, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_baseline(self) -> Self:
        if self.baseline == "value" and self.method in ("leave_one_out", "per_reward"):
            raise ValueError(
                f"method must be group, mean_only or batch with baseline = value, got {self.method}; it has a baseline of its own"
            )
        if self.credit != "set" and (self.baseline == "value" or self.method == "per_reward"):
            raise ValueError(
                f"credit must be set with baseline = {self.baseline} and method = {self.method}, got {self.credit}; values and "
                "reward parts are of whole samples: use baseline = group with method group, leave_one_out, mean_only or batch"
            )
        return self
