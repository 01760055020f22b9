"""REINFORCE. Source: Williams, 1992."""

from typing import TYPE_CHECKING, Literal

from grpo_pipeline.core.objective.surrogates.surrogate import Surrogate
from grpo_pipeline.core.policy_gradient.names import LikelihoodLevel

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.policy_gradient.ratios import Units


class Reinforce(Surrogate):
    """REINFORCE: no ratio, one update of a batch.

    Attributes:
        kind: of the surrogate.
    """

    kind: Literal["reinforce"] = "reinforce"
    ratio_level: LikelihoodLevel = "decision"

    def of_units(self, units: "Units", advantages: "Tensor") -> "Tensor":
        """Return -A * l, [P, G, U]."""
        return -advantages * units.logprobs
