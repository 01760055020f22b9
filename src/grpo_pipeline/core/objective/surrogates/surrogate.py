"""Describe what every surrogate has: a weight, a ratio level, a reduction."""

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Kind, Weight
from grpo_pipeline.core.policy_gradient.names import RatioLevel, Reduction
from grpo_pipeline.core.schedules import Schedule

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.policy_gradient.ratios import Units


class Surrogate(Kind):
    """A term that teaches the policy by its advantages (``<task>.<arm>.algorithm.losses.policy``).

    Letters of all surrogates: l log-probability of a unit now, r its ratio to the rollout policy, A its advantage. Each has the
    gradient of REINFORCE while the policy has not moved.

    Attributes:
        weight: of the term; it may rise from 0 over ``warmup_steps``.
        ratio_level: what a ratio belongs to: one decision, the joint sample, or the average decision of a sample.
        reduction: how the terms of a batch become one number (docs/algorithms.md).
        max_decisions: what the reduction ``constant`` divides by; null is the padded length of the batch.
        top_entropy: share of a batch's decisions that teach, those of largest entropy; null for all.
    """

    # Whether ``select`` finds anything.
    selects: ClassVar[bool] = False

    weight: Weight = Schedule(kind="constant", start=1.0)
    ratio_level: RatioLevel = "decision"
    reduction: Reduction = "per_sequence"
    max_decisions: int | None = Field(default=None, ge=1)
    # Left out of dumps where all teach, and so of digests.
    top_entropy: float | None = Field(
        default=None, gt=0, lt=1, exclude_if=lambda share: share is None
    )

    @property
    def unit_level(self) -> RatioLevel:
        """The level of the units that ``of_units`` takes; a surrogate may make the ratio of a sample of them itself."""
        return self.ratio_level

    def select(
        self, old_logprobs: "Tensor", advantages: "Tensor", is_valid: "Tensor"
    ) -> "Tensor | None":
        """Find the decisions of a batch that ``of_units`` treats otherwise, bool [P, G, L]; None of a surrogate without any.

        Args:
            old_logprobs: [P, G, L], as drawn.
            advantages: [P, G] or [P, G, L].
            is_valid: bool [P, G, L].
        """
        return None

    def of_units(self, units: "Units", advantages: "Tensor") -> "Tensor":
        """Return the loss of each unit, [P, G, U], or of each sample, [P, G, 1].

        Args:
            units: the policy's log-probabilities and log-ratios, [P, G, U].
            advantages: [P, G, 1] or [P, G, L], detached.
        """
        raise NotImplementedError

    def held(self, ratio: "Tensor", advantages: "Tensor") -> dict[str, "Tensor"]:
        """Return which units the bounds hold back: name of the bound -> bool [n].

        Args:
            ratio: [n], of valid units.
            advantages: [n], theirs.
        """
        return {}

    @model_validator(mode="after")
    def _check_reduction(self) -> Self:
        if self.max_decisions is not None and self.reduction != "constant":
            raise ValueError(
                f"max_decisions must be absent with reduction = {self.reduction}, got {self.max_decisions}; constant reads it"
            )
        if self.max_decisions is not None and self.ratio_level == "joint":
            raise ValueError(
                f"max_decisions must be absent with ratio_level = joint, got {self.max_decisions}; a joint sample is one unit, "
                "whatever its length"
            )
        if self.top_entropy is not None and self.ratio_level != "decision":
            raise ValueError(
                f"top_entropy must be null with ratio_level = {self.ratio_level}, got {self.top_entropy}; a whole sample has one "
                "ratio there: use ratio_level = decision"
            )
        if self.weight.start <= 0:
            raise ValueError(
                f"weight must be positive at its start, got {self.weight.start}; use warmup_steps to begin gently, or leave the "
                "policy out for the control"
            )
        return self
