"""Adapt the coefficient of the entropy bonus, so that the policy's entropy follows a target.

The bonus itself is analytic (``sampling.entropy_of``); this file only decides how much it weighs.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from grpo_pipeline.core.policy_gradient.names import check_name

TargetUnit = Literal["nats", "share"]


@dataclass(frozen=True)
class AdaptiveEntropy:
    """Move the coefficient in proportion to what the entropy lacks.

        alpha <- clamp(alpha + learning_rate * (target - H), minimum, maximum)

    Source: the dual ascent of SAC, arXiv 1812.05905, section 5, on alpha itself instead of its logarithm, so that it can
    reach 0. TRL's controller (Skywork-OR1, arXiv 2505.22312) moves by a fixed amount and switches the bonus off above the
    target; this one lets it fade.

    The state is the coefficient alone: a float, kept in the checkpoint by the caller.

    Attributes:
        target: the entropy aimed at, in ``unit``.
        learning_rate: change of the coefficient per optimiser step and nat (or share) of distance.
        minimum: smallest coefficient, at least 0.
        maximum: largest coefficient.
        unit: "nats", or "share" of the maximal entropy, in (0, 1]; a share holds its meaning when the number of
            allowed choices changes.

    Raises:
        ValueError: if a value is outside its range.
    """

    target: float
    learning_rate: float
    minimum: float
    maximum: float
    unit: TargetUnit = "nats"

    def __post_init__(self) -> None:
        check_name(self.unit, get_args(TargetUnit), "unit")
        highest = 1.0 if self.unit == "share" else math.inf
        if not (0.0 < self.target <= highest and math.isfinite(self.target)):
            raise ValueError(
                f"target must be above 0 and at most {highest} ({self.unit}), got {self.target}; correct the parameter"
            )
        if not 0.0 < self.learning_rate < math.inf:
            raise ValueError(
                f"learning_rate must be positive and finite, got {self.learning_rate}; correct it"
            )
        if not 0.0 <= self.minimum < self.maximum < math.inf:
            raise ValueError(
                f"0 <= minimum < maximum must hold, got {self.minimum} and {self.maximum}; widen the range"
            )

    def step(
        self, coefficient: float, measured_entropy: float, *, maximal_entropy: float | None = None
    ) -> float:
        """Return the coefficient of the next optimiser step.

        Args:
            coefficient: that of the step just taken.
            measured_entropy: mean analytic entropy of that step, nats, over all micro-batches and processes.
            maximal_entropy: mean of ``maximal_entropy``, nats; needed for unit = share.

        Raises:
            ValueError: if the entropy is not finite, or the maximal entropy is missing or not positive.
        """
        if not math.isfinite(measured_entropy) or not math.isfinite(coefficient):
            raise ValueError(
                f"entropy and coefficient must be finite, got {measured_entropy} and {coefficient}; a clamp would hide it"
            )
        measured = (
            measured_entropy
            if self.unit == "nats"
            else self._share(measured_entropy, maximal_entropy)
        )
        return min(
            self.maximum,
            max(self.minimum, coefficient + self.learning_rate * (self.target - measured)),
        )

    def _share(self, entropy: float, maximal: float | None) -> float:
        if maximal is None or not 0.0 < maximal < math.inf:
            raise ValueError(
                f"maximal_entropy must be positive for unit = share, got {maximal}; pass the mean log of choices"
            )
        return entropy / maximal


def maximal_entropy(is_allowed: Tensor) -> Tensor:
    """Return log(number of allowed choices), the entropy of the uniform policy: bool [..., V] -> float64 [...], nats."""
    return is_allowed.sum(dim=-1).double().log()
