"""Compute coefficients that change over training, such as learning rates, temperatures and weights of loss terms.

Standard library alone, so that a loop without parameter files can use it. A pydantic model that holds a ``Schedule`` reads
it from a mapping, refuses unknown keys and names the parameter in its errors (test_a_model_reads_it_from_a_mapping).
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

Kind = Literal["constant", "linear", "cosine"]
_ABSENT: Any = (
    None  # a field's default until __post_init__ has run, so that callers always see a number
)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A coefficient over the steps of one run.

    Attributes:
        kind: "constant" stays at start; "linear" and "cosine" go from start to end.
        start: value after the warm-up; finite.
        end: value at the last step, finite; needed unless the kind is "constant", where it is start.
        warmup_steps: steps over which the value rises in a straight line towards start; at least 0.

    Raises:
        ValueError: if a value breaks its rule (names it).
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  (pydantic's name for it; no annotation, or it is a field)

    kind: Kind = "constant"
    start: float
    end: float = _ABSENT
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(
                f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind}; choose one of them"
            )
        if self.end is _ABSENT and self.kind != "constant":
            raise ValueError(
                f"end must be given for a {self.kind} schedule, got none; set end or use kind: constant"
            )
        object.__setattr__(self, "end", self.start if self.end is _ABSENT else self.end)
        for name, value in (("start", self.start), ("end", self.end)):
            if not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value}; give a number")
        if self.kind == "constant" and self.end != self.start:
            raise ValueError(
                f"end must be absent from a constant schedule, got {self.end}; remove it or use kind: linear"
            )
        if self.warmup_steps < 0:
            raise ValueError(
                f"warmup_steps must be at least 0, got {self.warmup_steps}; use 0 for no warm-up"
            )


class MixingWeights(NamedTuple):
    """The weight of each half of the hybrid loss; they sum to 1."""

    supervised: float
    policy: float


def value_at(schedule: Schedule, step: int, total_steps: int) -> float:
    """Return the value at one step, counted from 0; the last step, total_steps - 1, has the value ``end``.

        warm-up:  start * (step + 1) / (warmup_steps + 1)        never 0, so that no step is wasted
        linear:   start + (end - start) * x                      x = share of the way after the warm-up, in [0, 1]
        cosine:   end + (start - end) * (1 + cos(pi * x)) / 2

    Raises:
        ValueError: if the step is negative.
    """
    if step < 0:
        raise ValueError(f"step must be at least 0, got {step}; count steps from 0")
    if step < schedule.warmup_steps:
        return schedule.start * (step + 1) / (schedule.warmup_steps + 1)
    if schedule.kind == "constant":
        return schedule.start
    x = min(1.0, (step - schedule.warmup_steps) / max(1, total_steps - 1 - schedule.warmup_steps))
    if schedule.kind == "linear":
        return schedule.start + (schedule.end - schedule.start) * x
    return schedule.end + (schedule.start - schedule.end) * (1 + math.cos(math.pi * x)) / 2


def mixing_weights(mu: float) -> MixingWeights:
    """Return the weights of the supervised and of the policy loss for one mixing coefficient.

        L = mu * L_supervised + (1 - mu) * L_policy

    Over a run, mu itself is ``value_at`` of a schedule: it warms up to a peak, then falls towards the end value.
    Source: CHORD, arXiv 2508.11408, the global coefficient mu; its token-wise weighting is not part of this.

    Args:
        mu: between 0 (policy loss alone) and 1 (supervised loss alone).

    Raises:
        ValueError: if mu is outside [0, 1].
    """
    if not 0 <= mu <= 1:
        raise ValueError(
            f"mu must be between 0 and 1, got {mu}; it is the share of the supervised loss"
        )
    return MixingWeights(supervised=mu, policy=1 - mu)
