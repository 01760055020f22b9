"""Coefficients that change over training: learning rates, temperatures, entropy and mixing weights."""

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


def _same_as_start(data: dict[str, Any]) -> float:
    return float(data.get("start", 0.0))


class Schedule(BaseModel):
    """A coefficient over the steps of one run.

    Attributes:
        kind: "constant" stays at start; "linear" and "cosine" go from start to end.
        start: value after the warm-up.
        end: value at the last step; needed unless the kind is "constant", where it is start.
        warmup_steps: steps over which the value rises in a straight line towards start.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["constant", "linear", "cosine"] = "constant"
    start: float = Field(allow_inf_nan=False)
    end: float = Field(default_factory=_same_as_start, allow_inf_nan=False)
    warmup_steps: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check_end(self) -> "Schedule":
        if self.kind != "constant" and "end" not in self.model_fields_set:
            raise ValueError(f"end must be given for a {self.kind} schedule, got none; set end or use kind: constant")
        if self.kind == "constant" and self.end != self.start:
            raise ValueError(f"end must be absent from a constant schedule, got {self.end}; remove it or use kind: linear")
        return self


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
