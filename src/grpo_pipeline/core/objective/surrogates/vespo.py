"""VESPO. Source: arXiv 2602.10693."""

from typing import TYPE_CHECKING, Literal

from grpo_pipeline.core.objective.surrogates.surrogate import Surrogate

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_pipeline.core.policy_gradient.ratios import Units

POWER_POSITIVE, RATE_POSITIVE = 2.0, 3.0
"""k and lambda where A >= 0, those of the source."""
POWER_NEGATIVE, RATE_NEGATIVE = 3.0, 2.0
"""k and lambda where A < 0: a sample that is pushed down fades faster as it becomes improbable."""


class Vespo(Surrogate):
    """VESPO: a smooth weight of the whole sample's ratio, in the place of a clip.

    Attributes:
        kind: of the surrogate.
    """

    kind: Literal["vespo"] = "vespo"
    ratio_level: Literal["joint"] = "joint"

    def of_units(self, units: "Units", advantages: "Tensor") -> "Tensor":
        """Return -stop(w) * A * l, w = exp(lambda) * r^k * exp(-lambda * r), [P, G, 1], for the joint ratio r.

        w is 1 at r = 1, largest at k / lambda, and fades towards both sides; it carries no gradient.
        """
        import torch

        from grpo_pipeline.core.policy_gradient.ratios import LOG_RATIO_BOUND

        is_pushed_up = advantages >= 0
        power = torch.where(is_pushed_up, POWER_POSITIVE, POWER_NEGATIVE)  # [P, G, 1]
        rate = torch.where(is_pushed_up, RATE_POSITIVE, RATE_NEGATIVE)  # [P, G, 1]
        log_ratio = units.log_ratio.detach().clamp(max=LOG_RATIO_BOUND)
        log_weight = rate + power * log_ratio - rate * log_ratio.exp()
        return -log_weight.exp().to(advantages.dtype) * advantages * units.logprobs
