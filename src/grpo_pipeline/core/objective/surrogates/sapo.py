"""SAPO. Source: arXiv 2511.20347."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grpo_pipeline.core.objective.surrogates.surrogate import Surrogate
from grpo_pipeline.core.policy_gradient.names import LikelihoodLevel

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.policy_gradient.ratios import Units


class Sapo(Surrogate):
    """SAPO: a sigmoid bounds the ratio softly.

    Attributes:
        kind: of the surrogate.
        tau_positive: its temperature where the advantage is positive.
        tau_negative: its temperature elsewhere.
    """

    kind: Literal["sapo"] = "sapo"
    ratio_level: LikelihoodLevel = "decision"
    tau_positive: float = Field(default=1.0, gt=0)
    tau_negative: float = Field(default=1.05, gt=0)

    def of_units(self, units: "Units", advantages: "Tensor") -> "Tensor":
        """Return -A * sigmoid(tau * (r - 1)) * 4 / tau, tau = tau_positive where A > 0, tau_negative elsewhere, [P, G, U].

        The gradient fades smoothly as r leaves 1 on either side.
        """
        positive = advantages.new_full((), self.tau_positive).expand_as(advantages)
        tau = positive.masked_fill(advantages <= 0, self.tau_negative)  # [P, G, 1] or [P, G, L]
        return -advantages * (tau * (units.ratio - 1.0)).sigmoid() * 4.0 / tau
