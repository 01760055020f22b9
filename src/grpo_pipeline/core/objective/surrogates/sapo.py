"""SAPO. Source: arXiv 2511.20347."""

from typing import TYPE_CHECKING, Literal

from grpo_pipeline.core.objective.surrogates.surrogate import Surrogate
from grpo_pipeline.core.policy_gradient.names import LikelihoodLevel

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.policy_gradient.ratios import Units


TAU_POSITIVE, TAU_NEGATIVE = 1.0, 1.05
"""Temperatures of the sigmoid, those of the source."""


class Sapo(Surrogate):
    """SAPO: a sigmoid bounds the ratio softly.

    Attributes:
        kind: of the surrogate.
    """

    kind: Literal["sapo"] = "sapo"
    ratio_level: LikelihoodLevel = "decision"

    def of_units(self, units: "Units", advantages: "Tensor") -> "Tensor":
        """Return -A * sigmoid(tau * (r - 1)) * 4 / tau, tau = 1 where A > 0, 1.05 elsewhere, [P, G, U].

        The gradient fades smoothly as r leaves 1 on either side.
        """
        positive = advantages.new_full((), TAU_POSITIVE).expand_as(advantages)
        tau = positive.masked_fill(advantages <= 0, TAU_NEGATIVE)  # [P, G, 1] or [P, G, L]
        return -advantages * (tau * (units.ratio - 1.0)).sigmoid() * 4.0 / tau
