"""GMPO. Source: arXiv 2507.20673."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grpo_pipeline.core.objective.surrogates.surrogate import Surrogate
from grpo_pipeline.core.policy_gradient.names import RatioLevel

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.policy_gradient.ratios import Units


class Gmpo(Surrogate):
    """GMPO: the geometric mean of a sample's ratios, of which each is clipped by itself.

    Attributes:
        kind: of the surrogate.
        ratio_level: of the mean; the clip sees single decisions.
        clip_low: the ratio of a decision is clipped below at exp(-clip_low).
        clip_high: the ratio of a decision is clipped above at exp(clip_high).
    """

    kind: Literal["gmpo"] = "gmpo"
    ratio_level: Literal["sequence"] = "sequence"
    clip_low: float = Field(default=0.4, gt=0)
    clip_high: float = Field(default=0.4, gt=0)

    @property
    def unit_level(self) -> RatioLevel:
        """Take single decisions, since each is clipped before the mean is taken."""
        return "decision"

    def of_units(self, units: "Units", advantages: "Tensor") -> "Tensor":
        """Return -A * exp(mean over L of c), [P, G, 1], where c is log r, held by the clip on the side that A pushes to.

            c = min(log r, high) where A > 0,  max(log r, -low) where A < 0

        A geometric mean follows single far ratios less than GRPO's arithmetic mean, so that the clip can be wider.
        """
        import torch

        from grpo_pipeline.core.policy_gradient.ratios import bounded_ratio

        log_ratio = units.log_ratio  # [P, G, L], 0 where not valid
        held = torch.where(
            advantages > 0,
            log_ratio.clamp(max=self.clip_high),
            log_ratio.clamp(min=-self.clip_low),
        )
        length = units.is_valid.sum(-1, keepdim=True).clamp(min=1)  # [P, G, 1]
        return -advantages * bounded_ratio(held.sum(-1, keepdim=True) / length)

    def held(self, ratio: "Tensor", advantages: "Tensor") -> dict[str, "Tensor"]:
        """Return which decisions [n] the clip holds below and above."""
        log_ratio = ratio.log()
        return {
            "low": (log_ratio < -self.clip_low) & (advantages < 0),
            "high": (log_ratio > self.clip_high) & (advantages > 0),
        }
