"""Rows and comparisons -> names and numbers as MLflow takes them; undefined values are left out, never replaced."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_pipeline.tracking.flatten import sanitise

NOT_METRICS = ("step", "epoch", "split")


@dataclass(frozen=True, order=True)
class Point:
    """One value of one metric at one step."""

    name: str
    value: float
    step: int


def row_points(row: Mapping[str, Any]) -> list[Point]:
    """Return a training row's metrics: bare names for the split "train", ``<split>/<name>`` for any other."""
    split = row.get("split", "train")
    prefix = "" if split == "train" else f"{split}/"
    values = ((name, as_number(value)) for name, value in row.items() if name not in NOT_METRICS)
    return [Point(sanitise(_prefixed(prefix, name)), value, int(row["step"])) for name, value in values if value is not None]


def _prefixed(prefix: str, name: str) -> str:
    return name if name.startswith(prefix) else prefix + name


def as_number(value: Any) -> float | None:
    """Return a finite number, or None for what is none: text, None, NaN, infinity, a tensor of several values."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) and not isinstance(value, str) else None


def arm_scores(comparison: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return arm -> ``test/<metric>`` and its interval's ends, by the name of the comparison's split."""
    prefix = str(comparison.get("split", "test"))
    return {arm: dict(_entries(scores["metrics"], prefix=prefix)) for arm, scores in comparison["arms"].items()}


def shared_scores(comparison: Mapping[str, Any]) -> dict[str, float]:
    """Return what belongs to no single arm: ``difference/…``, ``policy_gain/…`` and ``baseline/…``, each with its interval."""
    sections: list[tuple[str, Mapping[str, Any]]] = []
    for title, key in (("difference", "differences"), ("policy_gain", "policy_gain")):
        sections += [(f"{title}/{arm}", entries) for arm, entries in comparison.get(key, {}).items()]
    sections += [(f"baseline/{name}", scores["metrics"]) for name, scores in comparison.get("baselines", {}).items()]
    return dict(pair for prefix, entries in sections for pair in _entries(entries, prefix=prefix))


def _entries(entries: Mapping[str, Any], *, prefix: str) -> Iterator[tuple[str, float]]:
    for metric, entry in entries.items():
        low, high = entry.get("ci95") or (None, None)
        for suffix, value in (("", entry.get("value")), ("_ci_low", low), ("_ci_high", high)):
            if (number := as_number(value)) is not None:
                yield sanitise(f"{prefix}/{metric}{suffix}"), number
