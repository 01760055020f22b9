"""Resample whole clusters: weights per row, percentile intervals, paired differences."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.statistics.metric import UNBOUNDED, Bounds

Floats = NDArray[np.float64]

LEVEL = 0.95

FEW_CLUSTERS = 10
"""With fewer clusters there is no interval: of a class with 5 patients it holds the truth in 81 to 88 of 100 cases, not 95."""

MAX_UNDEFINED = 0.1
"""Share of undefined resamples above which no interval is given."""

ALIKE = "every resample gives this value"


@dataclass(frozen=True)
class Estimate:
    """A statistic of the sample and of each resample.

    Attributes:
        value: the statistic of the whole sample; NaN where undefined.
        resamples: float64 [B]; NaN in a resample that leaves it undefined.
        n: number of units (rows, clusters) that the value rests on.
        reason: the sentence to report when the value is undefined.
        clusters: number of clusters that the value rests on. If it compares two classes, only clusters of the rarer class count.
        bounds: the range of the statistic.
    """

    value: float
    resamples: Floats
    n: int
    reason: str
    clusters: int
    bounds: Bounds = UNBOUNDED

    @property
    def defined(self) -> Floats:
        """List the resamples that leave the statistic defined."""
        return self.resamples[np.isfinite(self.resamples)]

    @property
    def varies(self) -> bool:
        """Check whether the resamples differ by more than rounding."""
        rounding = 1e-12 + 1e-9 * abs(self.value)
        return bool(np.ptp(self.defined) > rounding) if len(self.defined) else False


def cluster_weights(clusters: pd.Series, *, resamples: int, seed: int) -> Floats:
    """Draw whole clusters with replacement, and count how often each resample holds each row.

    Each resample draws as many clusters as there are, each with probability 1/C. A row's weight is the number of draws of its
    cluster. The order of the rows does not matter: the draws belong to the sorted cluster names. Source: Davison and Hinkley,
    Bootstrap Methods and their Application, 1997, section 3.8.

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
        raise ValueError(
            f"{clusters.name} must be given for every row, got an empty cell in row {row}; name the cluster"
        )
    draws = numpy_generator(seed, Stream.BOOTSTRAP).multinomial(
        len(names), np.full(len(names), 1 / len(names)), size=resamples
    )  # [B, C]
    return draws[:, codes].astype(np.float64)  # [B, C] -> [B, n]


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
        clusters=min(treated.clusters, control.clusters),
        bounds=(
            treated.bounds[0] - control.bounds[1],
            treated.bounds[1] - control.bounds[0],
        ),
    )


def exact_interval(
    value: float, bounds: Bounds, *, clusters: int, level: float = LEVEL
) -> tuple[float, float]:
    """Compute the interval of a value that no resample changes; without two bounds, the interval is the value alone.

        u = 1 - ((1 - level) / 2)^(1 / C),    [(1 - u) v + u a, (1 - u) v + u b]

    All C clusters have the value v. Clusters with other values may exist: if their share is u, all C drawn ones miss them in 1 of
    40 cases. At worst their values lie at the ends of the range [a, b]. For a share of 1 (v = b), that is Clopper and Pearson's
    interval of C successes in C trials (Biometrika 26, 1934). The rule of three approximates it.
    """
    low, high = bounds
    if not np.isfinite(low) or not np.isfinite(high):
        return value, value
    unseen = 1 - ((1 - level) / 2) ** (1 / clusters)
    return (1 - unseen) * value + unseen * low, (1 - unseen) * value + unseen * high


def interval(estimate: Estimate) -> tuple[float, float]:
    """Return the 95% interval of a defined value, which always holds the value."""
    if not estimate.varies:
        return exact_interval(estimate.value, estimate.bounds, clusters=estimate.clusters)
    low, high = percentile_interval(estimate.resamples)
    return min(low, estimate.value), max(high, estimate.value)


def few_clusters_reason(clusters: int) -> str | None:
    """Write why a value of so few clusters has no interval; None where there are enough."""
    if clusters >= FEW_CLUSTERS:
        return None
    named = "1 cluster" if clusters == 1 else f"{clusters} clusters"
    return f"no interval: {named}, fewer than {FEW_CLUSTERS}"


def describe(estimate: Estimate, *, max_undefined: float = MAX_UNDEFINED) -> dict[str, Any]:
    """Describe an estimate for JSON: ``{"value", "ci95", "n"}``, with a ``"reason"`` where a value or interval is null.

    A value that rests on fewer than ``FEW_CLUSTERS`` clusters has no interval. Undefined resamples are left out of the interval
    and counted in ``"undefined_resamples"``. If their share is above ``max_undefined``, there is no interval. ``"se"`` is the
    standard deviation of the resamples. A ``"note"`` is added where all resamples are equal.
    """
    if not np.isfinite(estimate.value):
        return {
            "value": None,
            "ci95": None,
            "n": estimate.n,
            "reason": f"undefined: {estimate.reason}",
        }
    total = len(estimate.resamples)
    undefined = total - len(estimate.defined)
    entry: dict[str, Any] = {"value": float(estimate.value), "ci95": None, "n": estimate.n}
    if undefined:
        entry["undefined_resamples"] = undefined
    if reason := few_clusters_reason(estimate.clusters):
        return entry | {"reason": reason}
    if undefined > max_undefined * total:
        return entry | {
            "reason": f"no interval: undefined in {undefined} of {total} resamples ({estimate.reason})"
        }
    low, high = interval(estimate)
    entry |= {"ci95": [low, high]}
    if not estimate.varies:
        how = f"exact bound of {estimate.clusters} clusters" if low < high else "nothing bounds it"
        return entry | {"se": 0.0, "note": f"{ALIKE}: {how}"}
    return entry | {"se": float(np.std(estimate.defined, ddof=1))}
