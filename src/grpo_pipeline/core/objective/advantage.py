"""Parameters of the advantage: how rewards are compared."""

from typing import Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Part

# Methods with a baseline of their own, in whose place no predicted value goes.
OWN_BASELINE = ("leave_one_out", "per_reward", "reinforce_plus_plus", "opo", "pass_at_k")
# Methods that compare whole samples, and not decisions.
OF_SAMPLES = ("per_reward", "opo", "pass_at_k")


class AdvantageParams(Part):
    """How rewards become advantages (``<task>.<arm>.algorithm.advantage``).

    Attributes:
        method: the baseline and the scale, see ``core.policy_gradient.advantages``.
        k: of ``pass_at_k``: samples of which the best counts, at most ``training.group_size``.
        credit: what a decision is credited with: the reward of its whole sample (``set``); its own part of it, for a task that
            can reward parts of a sample, see ``core.rewards.credit_decisions``; or what is paid from its turn on (``to_go``), for
            a task that pays by turns, see ``core.rewards.credit_turns``.
        std: ``sample`` divides by n - 1, ``population`` by n; read where the method divides by a deviation.
        baseline: the mean of the group, or the predicted value of the prompt.
        clip: largest absolute advantage, before weights of prompts and of replay; null for no bound.
        top_k_ratio: share of the best samples of a group that teach.
        eps: added to every deviation, in units of the reward; read where ``std`` is.
    """

    method: Literal[
        "group",
        "leave_one_out",
        "mean_only",
        "batch",
        "per_reward",
        "reinforce_plus_plus",
        "opo",
        "pass_at_k",
    ]
    # What is off is left out of dumps, and so of digests.
    k: int | None = Field(default=None, ge=2, exclude_if=lambda k: k is None)
    std: Literal["sample", "population"]
    credit: Literal["set", "leave_one_out", "marginal", "marginal_to_go", "to_go"] = Field(
        default="set", exclude_if=lambda credit: credit == "set"
    )
    baseline: Literal["group", "value"] = "group"
    clip: float | None = Field(default=None, gt=0, exclude_if=lambda clip: clip is None)
    top_k_ratio: float = Field(default=1.0, gt=0, le=1)
    eps: float = Field(default=1e-4, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_baseline(self) -> Self:
        if self.baseline == "value" and self.method in OWN_BASELINE:
            raise ValueError(
                f"method must be group, mean_only or batch with baseline = value, got {self.method}; it has a baseline of its own"
            )
        if self.credit != "set" and (self.baseline == "value" or self.method in OF_SAMPLES):
            raise ValueError(
                f"credit must be set with baseline = {self.baseline} and method = {self.method}, got {self.credit}; values and "
                "reward parts are of whole samples: use baseline = group with method group, leave_one_out, mean_only or batch"
            )
        return self

    @model_validator(mode="after")
    def _check_k(self) -> Self:
        if (self.k is None) == (self.method == "pass_at_k"):
            got = "null" if self.k is None else self.k
            raise ValueError(
                f"k must be given with method = pass_at_k and with no other, got {got} with {self.method}; correct one of them"
            )
        return self
