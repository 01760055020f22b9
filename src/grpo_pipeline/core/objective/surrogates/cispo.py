"""CISPO. Source: arXiv 2506.13585."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grpo_pipeline.core.objective.surrogates.surrogate import Surrogate
from grpo_pipeline.core.policy_gradient.names import LikelihoodLevel

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.policy_gradient.ratios import Units


class Cispo(Surrogate):
    """CISPO: the ratio is a weight that is capped, and not clipped away.

    Attributes:
        kind: of the surrogate.
        ratio_cap: largest ratio; the bound itself, not its distance from 1 (TRL's ``epsilon_high``).
    """

    kind: Literal["cispo"] = "cispo"
    ratio_level: LikelihoodLevel = "decision"
    ratio_cap: float = Field(default=5.0, ge=1)

    def of_units(self, units: "Units", advantages: "Tensor") -> "Tensor":
        """Return -stop(min(r, ratio_cap)) * A * l, [P, G, U].

        The weight is capped and carries no gradient, so that no unit ever falls silent.
        """
        return -units.ratio.detach().clamp(max=self.ratio_cap) * advantages * units.logprobs

    def held(self, ratio: "Tensor", advantages: "Tensor") -> dict[str, "Tensor"]:
        """Return which units [n] are capped; the cap removes no gradient."""
        return {"high": ratio > self.ratio_cap}
