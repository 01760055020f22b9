"""Parameters of the policy-gradient term of the loss: one model for each kind of surrogate."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Part, Weight
from grpo_pipeline.core.policy_gradient.algorithms import LossOptions, RatioLevel, Reduction


class Surrogate(Part):
    """A term that teaches the policy by its advantages (``<task>.<arm>.algorithm.losses.policy``).

    Attributes:
        weight: of the term; it may rise from 0 over ``warmup_steps``.
        ratio_level: what a ratio belongs to: one decision, the joint sample, or the average decision of a sample.
        reduction: how the terms of a batch become one number (docs/algorithms.md).
        max_decisions: what the reduction ``constant`` divides by; null is the padded length of the batch.
    """

    weight: Weight
    ratio_level: RatioLevel
    reduction: Reduction
    max_decisions: int | None = None

    @property
    def options(self) -> LossOptions:
        """The options of this kind; those of other kinds keep their defaults."""
        own = {*LossOptions.__dataclass_fields__} & {*type(self).model_fields}
        given = {name: getattr(self, name) for name in own}
        return LossOptions(**{name: value for name, value in given.items() if value is not None})

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        if self.max_decisions is not None and self.reduction != "constant":
            raise ValueError(
                f"max_decisions must be absent with reduction = {self.reduction}, got {self.max_decisions}; constant reads it"
            )
        if self.max_decisions is not None and self.ratio_level == "joint":
            raise ValueError(
                f"max_decisions must be absent with ratio_level = joint, got {self.max_decisions}; a joint sample is one unit, "
                "whatever its length"
            )
        if self.weight.start <= 0:
            raise ValueError(
                f"weight must be positive at its start, got {self.weight.start}; use warmup_steps to begin gently, or leave the "
                "policy out for the control"
            )
        _ = self.options  # raises where a value is outside its range
        return self


class Reinforce(Surrogate):
    """REINFORCE: no ratio, one update of a batch.

    Attributes:
        kind: of the surrogate.
    """

    kind: Literal["reinforce"]


class Clipped(Surrogate):
    """The clipped surrogate of PPO and GRPO, and its kin by reduction (dr_grpo, dapo, bnpo) or by ratio (gspo).

    Attributes:
        kind: of the surrogate.
        clip_low: the ratio is clipped below at 1 - clip_low.
        clip_high: the ratio is clipped above at 1 + clip_high.
        delta: upper bound on the ratio where the advantage is negative, above 1 + clip_high; null for none.
        dual_clip: c above 1; where the advantage A is negative the loss is at most c |A|; null for none.
    """

    kind: Literal["ppo", "grpo", "dr_grpo", "dapo", "bnpo", "gspo"]
    clip_low: float = Field(gt=0, lt=1)
    clip_high: float = Field(gt=0)
    delta: float | None = None
    dual_clip: float | None = None


class Cispo(Surrogate):
    """CISPO: the ratio is a weight that is capped, and not clipped away.

    Attributes:
        kind: of the surrogate.
        ratio_cap: largest ratio.
    """

    kind: Literal["cispo"]
    ratio_cap: float = 5.0


class Sapo(Surrogate):
    """SAPO: a sigmoid bounds the ratio softly.

    Attributes:
        kind: of the surrogate.
        tau_positive: its temperature where the advantage is positive.
        tau_negative: its temperature elsewhere.
    """

    kind: Literal["sapo"]
    tau_positive: float = 1.0
    tau_negative: float = 1.05


PolicyLoss = Annotated[Reinforce | Clipped | Cispo | Sapo, Field(discriminator="kind")]
