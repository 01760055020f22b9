"""Clustered bootstrap: counts per row, percentile intervals, paired differences. Knows no task."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_pipeline.core.rng import Stream, numpy_generator

Floats = NDArray[np.float64]
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A statistic of the sample and of each resample.

    Attributes:
        value: the statistic of the whole sample; NaN where undefined.
        resamples: float64 [B]; NaN in a resample that leaves it undefined.
        n: number of units (rows, clusters) that the value rests on.
        reason: the sentence to report when the value is undefined.
    """

    value: float
    resamples: Floats
    n: int
    reason: str


def cluster_weights(clusters: pd.Series, *, resamples: int, seed: int) -> Floats:
    """Draw whole clusters with replacement and count how often each row is in each resample.

    Each resample draws as many clusters as there are, each with probability 1/C; a row's weight is the number of times
    that its cluster was drawn. Depends on the rows' order only through their clusters: the draws belong to the sorted
    cluster names. Source: Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8.

    Args:
        clusters: the cluster of each row, [n].
        resamples: B.
        seed: seed of the draws.

    Returns:
        Counts as float64 [B, n].

    Raises:
        ValueError: if a row has no cluster.
    """
    codes, names = pd.factorize(clusters, sort=True)
    if (codes < 0).any():
        row = int(np.flatnonzero(codes < 0)[0])
        raise ValueError(f"{clusters.name} must be given for every row, got an empty cell in row {row}; name the cluster")
    draws = numpy_generator(seed, Stream.BOOTSTRAP).multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)
    return draws[:, codes].astype(np.float64)


def percentile_interval(resamples: Floats) -> tuple[float, float]:
    """Return the central 95% of the defined resamples (linear interpolation between order statistics)."""
    defined = resamples[np.isfinite(resamples)]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return float(low), float(high)


def paired_difference(treated: Estimate, control: Estimate) -> Estimate:
    """Return treated - control, resample by resample; both must come from the same weights on aligned rows.

    What the two share (hard cores, easy patients) cancels inside each resample, which is why the interval is narrower
    than the one from independent resamples.

    Raises:
        ValueError: if the two hold different numbers of resamples.
    """
    if treated.resamples.shape != control.resamples.shape:
        raise ValueError(
            f"paired estimates must share their resamples, got {len(treated.resamples)} and {len(control.resamples)}; "
            "compute both from one cluster_weights"
        )
    return Estimate(
        value=treated.value - control.value,
        resamples=treated.resamples - control.resamples,
        n=min(treated.n, control.n),
        reason=treated.reason,
    )


def describe(estimate: Estimate, *, clusters: int, max_undefined: float) -> dict[str, object]:
    """Return ``{"value", "ci95", "n"}`` for JSON, with a ``"reason"`` wherever one of them is null.

    Undefined resamples are left out of the interval and counted in ``"undefined_resamples"``; above the share
    ``max_undefined`` they are too many for an honest interval and none is given. Beside an interval, ``"se"`` is the standard
    deviation of the resamples.
    """
    if not np.isfinite(estimate.value):
        return {"value": None, "ci95": None, "n": estimate.n, "reason": f"undefined: {estimate.reason}"}
    total, undefined = len(estimate.resamples), int((~np.isfinite(estimate.resamples)).sum())
    entry: dict[str, object] = {"value": float(estimate.value), "ci95": None, "n": estimate.n}
    if undefined:
        entry["undefined_resamples"] = undefined
    if clusters < 2:
        return entry | {"reason": "no interval: all rows belong to one cluster"}
    if undefined > max_undefined * total:
        return entry | {"reason": f"no interval: undefined in {undefined} of {total} resamples ({estimate.reason})"}
    spread = float(np.std(estimate.resamples[np.isfinite(estimate.resamples)], ddof=1))
    return entry | {"ci95": list(percentile_interval(estimate.resamples)), "se": spread}
