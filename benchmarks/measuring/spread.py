"""The median of what the rounds of a benchmark gave, with the smallest and the largest."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Of one number over rounds."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return median, smallest and largest."""
    return Spread(statistics.median(values), min(values), max(values))


def ratio(above: Sequence[float], below: Sequence[float], *, scale: float = 1.0) -> Spread:
    """Return above / below / scale, taken within rounds: a machine that is slow in one is slow for both."""
    return spread([a / b / scale for a, b in zip(above, below, strict=True)])
