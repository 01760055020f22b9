"""REINFORCE. Source: Williams, 1992."""

from typing import TYPE_CHECKING, Any, Literal

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

    def check_arm(self, arm: Any) -> None:
        """Refuse what needs a ratio."""
        if arm.update_epochs != 1:
            raise ValueError(
                f"update_epochs must be 1 with losses.policy.kind = reinforce, got {arm.update_epochs}; it has no ratio to "
                "correct for a policy that has moved: use grpo"
            )
        if arm.replay is not None:
            raise ValueError(
                "replay must be null with losses.policy.kind = reinforce, got a value; it has no ratio to correct with: use grpo"
            )
        if arm.losses.kl and arm.losses.kl.estimator == "ratio_k3":
            raise ValueError(
                "losses.kl.estimator must not be ratio_k3 with losses.policy.kind = reinforce, got ratio_k3; it has no ratio: "
                "use k3"
            )
