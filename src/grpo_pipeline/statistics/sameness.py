"""Find outputs of a model that are the same for every input; pictures of them show nothing about the input."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

SAME_PATTERN, SAME_NUMBER, SAME_TEXT = 0.95, 0.999, 0.95
"""Shares from which a pattern, a number and a text are called the same everywhere."""
FLAT = 1e-5
"""Of the largest value of all maps: spread below which they are flat."""
FEWEST = 3
"""Inputs below which nothing is said: two can be alike by chance."""


def measure_sameness(
    shown: Mapping[str, np.ndarray], outputs: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Measure the share of each output that is common to all inputs.

    Args:
        shown: arrays of a few examples, the first axis being the examples.
        outputs: array -> name of the output. An absent array, or one of fewer than three examples, is left out.

    Returns:
        Name -> ``share``, its kind ``of`` (variance, size or outputs), the number ``n`` of inputs, and ``is_same``.
    """
    found = {}
    for array, name in outputs.items():
        values = np.asarray(shown.get(array, ()))
        if len(values) < FEWEST or not values.size:
            continue
        if values.dtype.kind in "US":
            of, share, limit = "outputs", commonest_share(values), SAME_TEXT
        elif values.ndim == 1:
            of, share, limit = "size", shared_size(values), SAME_NUMBER
        else:
            of, share, limit = "variance", shared_variance(values), SAME_PATTERN
        found[name] = {"share": share, "of": of, "n": len(values), "is_same": share >= limit}
    return found


def shared_variance(maps: np.ndarray) -> float:
    """Compute the share of the variance inside maps that all maps have in common, [n, ...] -> 0 to 1.

        |mean_i x_i|^2 / mean_i |x_i|^2,   x_i = map i - its own mean

    The level of a map is taken out: a pattern that is repeated at another level shows no place. Of n unlike maps it is about
    1 / n. Maps that vary by no more than rounding show no place either: 1.
    """
    x = np.asarray(maps, np.float64).reshape(len(maps), -1)
    rounding = FLAT * np.abs(x).max()
    x = x - x.mean(axis=1, keepdims=True)  # [n, d]
    whole = (x**2).mean()
    return float((x.mean(axis=0) ** 2).mean() / whole) if whole > rounding**2 else 1.0


def shared_size(numbers: np.ndarray) -> float:
    """Compute mean^2 / mean square of numbers, [n] -> 0 to 1: 1 where all are equal. NaNs are left out."""
    x = np.asarray(numbers, np.float64)
    x = x[np.isfinite(x)]
    square = (x**2).mean() if len(x) else 0.0
    return float(x.mean() ** 2 / square) if square > 0 else 1.0


def commonest_share(texts: np.ndarray) -> float:
    """Compute the share of the commonest text among all, [n] or [n, samples]."""
    counts = Counter(np.asarray(texts).ravel().tolist())
    return counts.most_common(1)[0][1] / counts.total()


def sameness_sentences(sameness: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Write which outputs of which arms are the same for every input, from arm -> output -> entry of ``measure_sameness``."""
    return [
        f"{arm}: the {name} is the same everywhere: do not read it ({entry['share']:.1%} of its {entry['of']} "
        f"is the same for all {entry['n']} inputs that are shown)."
        for arm, outputs in sameness.items()
        for name, entry in outputs.items()
        if entry["is_same"]
    ]
