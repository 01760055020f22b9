"""Turn metric rows into named points of curves."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from grpo_pipeline.pipelines.training.best import KEPT
from grpo_pipeline.tracking.flat_parameters import sanitise

NOT_METRICS = ("step", "epoch", "split")


@dataclass(frozen=True, order=True)
class Point:
    """A value of a metric at a step."""

    name: str
    value: float
    step: int


def row_points(row: Mapping[str, Any]) -> list[Point]:
    """List a training row's metrics: bare names for the split "train", ``<split>/<name>`` for any other."""
    split = row.get("split", "train")
    prefix = "" if split == "train" else f"{split}/"
    values = ((name, as_number(value)) for name, value in row.items() if name not in NOT_METRICS)
    return [
        Point(sanitise(name if name.startswith(prefix) else prefix + name), value, int(row["step"]))
        for name, value in values
        if value is not None
    ]


def chosen_metrics(row: Mapping[str, Any], patterns: Collection[str]) -> dict[str, Any]:
    """Select the metrics of a training row whose names in MLflow match one of the shell patterns.

    Metrics that only mark kept weights (``training.best``) repeat another metric, and are left out.
    """
    prefix = "" if (split := row.get("split", "train")) == "train" else f"{split}/"
    return {
        name: value
        for name, value in row.items()
        if name in NOT_METRICS
        or (
            not name.startswith(tuple(KEPT.values()))
            and any(
                fnmatchcase(name if name.startswith(prefix) else prefix + name, p) for p in patterns
            )
        )
    }


def as_number(value: Any) -> float | None:
    """Convert a value to a finite number; None for text, None, NaN, infinity, or a tensor of several values."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) and not isinstance(value, str) else None
