"""How differences with intervals are put into words, for every task."""

from collections.abc import Mapping
from typing import Any

Entry = Mapping[str, Any]


def judge(entry: Entry, *, above: str, below: str, neutral: float = 0.0) -> str:
    """Choose the words by where the interval lies relative to the neutral value."""
    low, high = entry["ci95"]
    if low > neutral:
        return above
    if high < neutral:
        return below
    return "no difference shown"


def signed(entry: Entry) -> str:
    """Write a difference with its sign and interval: ``+0.012 (95% interval -0.020 to +0.041)``."""
    low, high = entry["ci95"]
    return f"{entry['value']:+.3f} (95% interval {low:+.3f} to {high:+.3f})"
