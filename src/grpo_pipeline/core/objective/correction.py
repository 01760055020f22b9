"""Parameters of the correction for samples that another engine drew than the policy that learns from them."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from grpo_pipeline.core.objective.part import Kind

if TYPE_CHECKING:
    from torch import Tensor


class Bounded(Kind):
    """Weigh what an engine drew by how likely the policy is to draw it (``<task>.<arm>.algorithm.correction``).

    r is the probability of a decision, or of a whole sample, under the policy over that under the engine.

    Attributes:
        kind: ``truncate``: a larger ratio counts as the cap; ``mask``: what is outside the bounds teaches nothing.
        level: ``decision``: a weight for each decision, biased where earlier decisions change later ones; ``sequence``: one for
            the sample, unbiased up to the bounds, of larger variance.
        cap: largest weight.
    """

    of_a_policy: ClassVar[bool] = True

    level: Literal["decision", "sequence"]
    cap: float = Field(default=2.0, ge=1)

    def beyond(self, ratio: "Tensor") -> "Tensor":
        """Mark the ratios that the bounds hold back, bool of their shape."""
        return ratio > self.cap

    def check_arm(self, arm: Any) -> None:
        """Refuse stored groups, which do not know their engine, and weights of decisions beside a ratio of samples."""
        if arm.replay is not None:
            raise ValueError(
                "replay must be null with correction, got a value; a stored group does not know the engine that drew it: keep one"
            )
        if self.level == "decision" and (level := arm.losses.policy.ratio_level) != "decision":
            raise ValueError(
                f"correction.level must be sequence with losses.policy.ratio_level = {level}, got decision; a whole sample "
                "has one ratio there: use level = sequence"
            )


class Truncate(Bounded):
    """TIS, truncated importance sampling: min(r, cap).

    Sources: Ionides 2008, 10.1198/106186008X320456; for engines Yao et al. 2025 (fengyao.notion.site/off-policy-rl).
    """

    kind: Literal["truncate"]

    def weights(self, ratio: "Tensor") -> "Tensor":
        """Return min(r, cap)."""
        return ratio.clamp(max=self.cap)


class Mask(Bounded):
    """MIS, masked importance sampling: r where floor <= r <= cap, else 0.

    Sources: Liu et al. 2025, "When speed kills stability" (yingru.notion.site); with level ``decision`` IcePop, arXiv 2510.18855.

    Attributes:
        floor: smallest weight; null for none.
    """

    kind: Literal["mask"]
    floor: float | None = Field(default=None, gt=0, le=1)

    def beyond(self, ratio: "Tensor") -> "Tensor":
        """Mark the ratios outside [floor, cap], bool of their shape."""
        above = super().beyond(ratio)
        return above if self.floor is None else above | (ratio < self.floor)

    def weights(self, ratio: "Tensor") -> "Tensor":
        """Return r within the bounds, else 0."""
        return ratio.masked_fill(self.beyond(ratio), 0.0)


Correction = Annotated[Truncate | Mask, Field(discriminator="kind")]
