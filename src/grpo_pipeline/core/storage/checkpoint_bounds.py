"""Bound the numbers in a checkpoint's header: the file was written by a machine, but anyone may have changed it since."""

import math
from collections.abc import Mapping
from typing import Any

COUNTERS = ("step", "epoch", "seed")

NOT_NEGATIVE = ("lr", "initial_lr", "weight_decay", "eps")

KINDS = {
    "parameters": Mapping,
    "extra": Mapping,
    "rng": Mapping,
    "coefficients": Mapping,
    "code": Mapping,
    "frozen_reference": str | None,
    "replay": Mapping | None,
}


def check_bounds(header: Mapping[str, Any]) -> None:
    """Refuse counters, coefficients and optimiser settings that no run writes.

    Args:
        header: with "progress", "coefficients" and "optimizer" (its "groups").

    Raises:
        ValueError: naming the first of them.
        KeyError: if an entry is missing.
    """
    progress = header["progress"]
    for name in COUNTERS:
        _check(name, progress[name], is_count(progress[name]), "a whole number of at least 0")
    if "total_steps" in progress:
        total = progress["total_steps"]
        rule = f"at most the {total} steps of the run"
        _check("step", progress["step"], is_count(total) and progress["step"] <= total, rule)
        _check(
            "epoch",
            progress["epoch"],
            progress["epoch"] <= progress["step"],
            f"at most the {progress['step']} steps done",
        )
    for name, value in header["coefficients"].items():
        _check(f"coefficient '{name}'", value, is_number(value), "finite")
    for group in header["optimizer"]["groups"]:
        label = group.get("name", "of the optimiser")
        for name in NOT_NEGATIVE:
            value = group.get(name, 0.0)
            _check(
                f"{name} of group {label}",
                value,
                is_number(value) and value >= 0,
                "finite and at least 0",
            )
        betas = group.get("betas", ())
        _check(
            f"betas of group {label}",
            betas,
            all(is_number(b) and 0 <= b < 1 for b in betas),
            "at least 0 and below 1",
        )


def check_kinds(header: Mapping[str, Any]) -> None:
    """Refuse entries of a header that are of another kind than a run writes.

    Raises:
        ValueError: naming the first of them.
        KeyError: if an entry is missing.
    """
    for name, kind in KINDS.items():
        found = type(header[name]).__name__
        _check(name, found, isinstance(header[name], kind), "of the kind that a run writes")
    for name, values in header["optimizer"]["scalars"].items():
        for key, value in values.items():
            holds = value is None or isinstance(value, bool) or is_number(value)
            _check(f"{key} of {name} in the optimiser", value, holds, "a finite number")


def is_count(value: Any) -> bool:
    """Say whether a JSON value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_number(value: Any) -> bool:
    """Say whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check(name: str, value: Any, holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {rule}, got {value}")
