"""The clipped surrogate of PPO and GRPO, and its kin by reduction (dr_grpo, dapo, bnpo) or by ratio (gspo, luspo)."""

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.surrogates.surrogate import Surrogate
from grpo_pipeline.core.policy_gradient.names import LikelihoodLevel

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.policy_gradient.ratios import Units


class Clipped(Surrogate):
    """The clipped surrogate.

    Attributes:
        clip_low: the ratio is clipped below at 1 - clip_low.
        clip_high: the ratio is clipped above at 1 + clip_high.
        delta: upper bound on the ratio where the advantage is negative, above 1 + clip_high; null for none.
        dual_clip: c above 1; where the advantage A is negative the loss is at most c |A|; null for none.
    """

    clip_low: float = Field(default=0.2, gt=0, le=1)
    clip_high: float = Field(default=0.2, gt=0)
    delta: float | None = None
    dual_clip: float | None = Field(default=None, gt=1)

    def of_units(self, units: "Units", advantages: "Tensor") -> "Tensor":
        """Return -min(min(r, delta) * A, clip(r, 1 - low, 1 + high) * A), for A < 0 at most dual_clip * |A|, [P, G, U].

        Source: PPO, arXiv 1707.06347, equation 7; low != high: DAPO, arXiv 2503.14476, section 3.1; delta: INTELLECT-2,
        arXiv 2505.07291; dual_clip: arXiv 1912.09729; on the sequence ratio: GSPO, arXiv 2507.18071, equation 5. Without
        delta or dual_clip the loss of A < 0 grows with r without bound. Above 1 + high, dual_clip is delta by another name.
        """
        ratio = units.ratio  # r: [P, G, U]
        # delta matters where A < 0 alone: above 1 + high a positive A is bounded by the clip.
        free = ratio if self.delta is None else ratio.clamp(max=self.delta)
        clipped = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        loss = -(free * advantages).minimum(clipped * advantages)
        if self.dual_clip is None:
            return loss
        bounded = loss.minimum(-self.dual_clip * advantages)
        return bounded.where(advantages < 0, loss)

    def held(self, ratio: "Tensor", advantages: "Tensor") -> dict[str, "Tensor"]:
        """Return which units [n] the clip holds below and above, and which of A < 0 delta or dual_clip holds."""
        held = {
            "low": (ratio < 1 - self.clip_low) & (advantages < 0),
            "high": (ratio > 1 + self.clip_high) & (advantages > 0),
        }
        bound = self.dual_clip if self.delta is None else self.delta
        return held if bound is None else held | {"dual": (ratio > bound) & (advantages < 0)}

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.delta is not None and self.dual_clip is not None:
            raise ValueError(
                f"at most one of delta and dual_clip must be given, got {self.delta} and {self.dual_clip}; both bound the loss "
                "of A < 0: keep one"
            )
        if self.delta is not None and self.delta <= 1 + self.clip_high:
            raise ValueError(
                f"delta must be above 1 + clip_high = {1 + self.clip_high:g}, got {self.delta}; correct the parameter"
            )
        return self


class Grpo(Clipped):
    """GRPO, beside the mean of the group (DeepSeekMath, arXiv 2402.03300), or PPO, beside a predicted value.

    Attributes:
        kind: of the surrogate.
    """

    kind: Literal["grpo", "ppo"] = "grpo"
    ratio_level: LikelihoodLevel = "decision"

    def check_arm(self, arm: Any) -> None:
        """Refuse PPO beside the mean of a group."""
        if self.kind == "ppo" and arm.advantage.baseline != "value":
            raise ValueError(
                "advantage.baseline must be value with losses.policy.kind = ppo, got group; use grpo for a group baseline"
            )


class DrGrpo(Clipped):
    """Dr. GRPO: divided by a constant length. Source: arXiv 2503.20783.

    Attributes:
        kind: of the surrogate.
    """

    kind: Literal["dr_grpo"] = "dr_grpo"
    ratio_level: LikelihoodLevel = "decision"
    reduction: Literal["constant"] = "constant"


class Dapo(Clipped):
    """DAPO: the mean over all decisions of a batch. Source: arXiv 2503.14476.

    Attributes:
        kind: of the surrogate.
    """

    kind: Literal["dapo"] = "dapo"
    ratio_level: LikelihoodLevel = "decision"
    reduction: Literal["per_decision"] = "per_decision"


class Bnpo(Clipped):
    """BNPO, TRL's name: the mean over the decisions of each micro-batch.

    Attributes:
        kind: of the surrogate.
    """

    kind: Literal["bnpo"] = "bnpo"
    ratio_level: LikelihoodLevel = "decision"
    reduction: Literal["per_decision_local"] = "per_decision_local"


class Gspo(Clipped):
    """GSPO: the clipped surrogate of a ratio that is normalised by length. Source: arXiv 2507.18071.

    Attributes:
        kind: of the surrogate.
    """

    kind: Literal["gspo"] = "gspo"
    ratio_level: Literal["sequence"] = "sequence"


class Luspo(Clipped):
    """LUSPO: GSPO with each sample multiplied by its length, so that a long one does not count less. Source: arXiv 2602.05261.

    Attributes:
        kind: of the surrogate.
    """

    kind: Literal["luspo"] = "luspo"
    ratio_level: Literal["sequence"] = "sequence"
    reduction: Literal["per_sequence_sum"] = "per_sequence_sum"
