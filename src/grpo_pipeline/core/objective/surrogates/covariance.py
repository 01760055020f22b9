"""Clip-Cov and KL-Cov: hold the few decisions that make the entropy fall. Source: arXiv 2505.22617."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.surrogates.clipped import Clipped
from grpo_pipeline.core.objective.surrogates.surrogate import Surrogate

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.policy_gradient.ratios import Units


class ClipCov(Clipped):
    """Clip-Cov: the clipped surrogate, without the decisions of large covariance.

    How this differs from the paper: of the decisions within the bounds it draws some at random; here the largest are taken.

    Attributes:
        kind: of the surrogate.
        cov_share: share of a batch's decisions that fall silent, at least one of those within the bounds.
        cov_low: covariances above it count.
        cov_high: covariances below it count.
    """

    selects: ClassVar[bool] = True

    kind: Literal["clip_cov"] = "clip_cov"
    ratio_level: Literal["decision"] = "decision"
    cov_share: float = Field(default=0.0002, gt=0, lt=1)
    cov_low: float = 1.0
    cov_high: float = 5.0

    def select(
        self, old_logprobs: "Tensor", advantages: "Tensor", is_valid: "Tensor"
    ) -> "Tensor | None":
        """Find the decisions that fall silent, bool [P, G, L]."""
        from grpo_pipeline.core.policy_gradient.covariances import covariances, find_largest

        found = covariances(old_logprobs, advantages, is_valid)
        is_within = is_valid & (found > self.cov_low) & (found < self.cov_high)
        return find_largest(found, is_within, share=self.cov_share, of=int(is_valid.sum()))

    def of_units(self, units: "Units", advantages: "Tensor") -> "Tensor":
        """Return the clipped surrogate, 0 where selected, [P, G, L]."""
        loss = super().of_units(units, advantages)
        return loss if units.is_selected is None else loss.masked_fill(units.is_selected, 0.0)

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.cov_low >= self.cov_high:
            raise ValueError(
                f"cov_low must be below cov_high, got {self.cov_low} and {self.cov_high}; exchange them"
            )
        return self


class KlCov(Surrogate):
    """KL-Cov: the ratio without a clip, and a penalty on the decisions of largest covariance.

    Attributes:
        kind: of the surrogate.
        cov_share: share of a batch's decisions that pay, at least one.
        kl_weight: of the distance of log-probabilities that they pay.
    """

    selects: ClassVar[bool] = True

    kind: Literal["kl_cov"] = "kl_cov"
    ratio_level: Literal["decision"] = "decision"
    cov_share: float = Field(default=0.0002, gt=0, lt=1)
    kl_weight: float = Field(default=1.0, gt=0)

    def select(
        self, old_logprobs: "Tensor", advantages: "Tensor", is_valid: "Tensor"
    ) -> "Tensor | None":
        """Find the decisions that pay, bool [P, G, L]."""
        from grpo_pipeline.core.policy_gradient.covariances import covariances, find_largest

        found = covariances(old_logprobs, advantages, is_valid)
        return find_largest(found, is_valid, share=self.cov_share, of=int(is_valid.sum()))

    def of_units(self, units: "Units", advantages: "Tensor") -> "Tensor":
        """Return -A * r + kl_weight * |l - o| where selected, -A * r elsewhere, [P, G, L].

        The penalty is 0 while the policy has not moved.
        """
        loss = -advantages * units.ratio
        if units.is_selected is None:
            return loss
        paid = units.log_ratio.abs().masked_fill(~units.is_selected, 0.0)
        return loss + self.kl_weight * paid

    def check_arm(self, arm: Any) -> None:
        """Refuse a single update, before which the policy has not moved."""
        if arm.update_epochs == 1:
            raise ValueError(
                "update_epochs must be above 1 with losses.policy.kind = kl_cov, got 1; its penalty is 0 before the policy has "
                "moved: use more update epochs, or clip_cov"
            )
