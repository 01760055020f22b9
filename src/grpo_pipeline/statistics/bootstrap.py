"""Clustered bootstrap: weights per row, percentile intervals, paired differences, and the mean over training seeds.

The interval over seeds holds both the choice of test examples and the luck of training.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import t as student

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
    )


def describe(estimate: Estimate, *, clusters: int, max_undefined: float) -> dict[str, object]:
    """Return ``{"value", "ci95", "n"}`` for JSON, with a ``"reason"`` wherever one of them is null.

    Undefined resamples are left out of the interval and counted in ``"undefined_resamples"``; above the share
    ``max_undefined`` they are too many for an honest interval and none is given. Beside an interval, ``"se"`` is the standard
    deviation of the resamples.
    """
    if not np.isfinite(estimate.value):
        return {
            "value": None,
            "ci95": None,
            "n": estimate.n,
            "reason": f"undefined: {estimate.reason}",
        }
    total, undefined = len(estimate.resamples), int((~np.isfinite(estimate.resamples)).sum())
    entry: dict[str, object] = {"value": float(estimate.value), "ci95": None, "n": estimate.n}
    if undefined:
        entry["undefined_resamples"] = undefined
    # Resamples of a single cluster are all the same: an interval of width 0 would claim certainty.
    if clusters < 2:
        return entry | {"reason": "no interval: all rows belong to one cluster"}
    if undefined > max_undefined * total:
        return entry | {
            "reason": f"no interval: undefined in {undefined} of {total} resamples ({estimate.reason})"
        }
    spread = float(np.std(estimate.resamples[np.isfinite(estimate.resamples)], ddof=1))
    return entry | {"ci95": list(percentile_interval(estimate.resamples)), "se": spread}


# Many differences at once: bootstrap p-values, Holm's correction, simultaneous intervals. Knows no task.

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Simultaneous:
    """Intervals that hold together.

    Attributes:
        critical: c, how many standard errors each interval reaches to either side; NaN where there is nothing to bound.
        intervals: name -> (low, high).
    """

    critical: float
    intervals: dict[Any, tuple[float, float]]


def two_sided_p(resamples: Floats) -> float:
    """Return the p-value of "the difference is 0" by inverting the percentile interval.

        p = min(1, 2 * (1 + min(#{d* <= 0}, #{d* >= 0})) / (B + 1))

    At level 0.05 it agrees with whether the 95% percentile interval leaves out 0, up to 1 / B. It is never below 2 / (B + 1).
    Source: Davison and Hinkley, Bootstrap Methods and their Application, 1997, sections 4.2.5 and 5.5 (test inversion).

    Args:
        resamples: the difference in each resample, [B]; undefined ones (NaN) are left out.
    """
    defined = resamples[np.isfinite(resamples)]
    rarer = min(int((defined <= 0).sum()), int((defined >= 0).sum()))
    return min(1.0, 2 * (1 + rarer) / (len(defined) + 1))


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Return Holm's adjusted p-values: rejecting those below 0.05 errs in any of them with probability below 0.05.

        p~(i) = max over j <= i of min(1, (m - j + 1) * p(j)),  p(1) <= ... <= p(m)

    Needs no assumption about how the tests depend on each other. Source: Holm, Scand. J. Statist. 6, 1979.
    """
    adjusted: dict[K, float] = {}
    highest = 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}


def simultaneous_intervals(estimates: Mapping[Any, Estimate]) -> Simultaneous:
    """Return intervals that all hold together with probability 95%.

        d_j +- c * se_j,  se_j = sd of d_j*,  c = 95% quantile over the resamples of max_j |d_j* - d_j| / se_j

    The estimates must share their resamples, so that c knows how they depend on each other: c lies between the quantile of one
    interval (1.96 for a normal one) and Bonferroni's. A resample in which one is undefined is left out; an estimate that never
    varies gets [d, d]. Source: max-|t| of Westfall and Young, Resampling-Based Multiple Testing, 1993, with the bootstrap's
    standard error in the place of one computed anew in each resample.
    """
    if not estimates:
        return Simultaneous(float("nan"), {})
    values = np.array([one.value for one in estimates.values()])  # d_j: [J]
    resamples = np.stack([one.resamples for one in estimates.values()])  # d_j*: [J, B]
    resamples = resamples[:, np.isfinite(resamples).all(axis=0)]
    errors = resamples.std(axis=1, ddof=1) if resamples.shape[1] > 1 else np.zeros(len(values))
    varies = errors > 0
    if not varies.any():
        return Simultaneous(
            float("nan"), {name: (one.value, one.value) for name, one in estimates.items()}
        )
    # |d_j* - d_j| / se_j of the estimates that vary; c is a quantile of the largest of each resample, [B].
    distance = np.abs(resamples[varies] - values[varies, None]) / errors[varies, None]
    critical = float(np.quantile(distance.max(axis=0), LEVEL))
    reach = critical * errors
    bounds = zip((values - reach).tolist(), (values + reach).tolist(), strict=True)
    return Simultaneous(critical, dict(zip(estimates, bounds, strict=True)))


METHOD = "t interval, seeds and clusters: variance of the bootstrap over both, degrees of freedom by Satterthwaite"
NOT_COVERED = (
    "The intervals hold the choice of test examples, not the luck of training: another seed may lie outside. "
    "make results trains on several seeds, the pipeline compare many arms."
)


def over_seeds(
    values: Sequence[float], *, cluster_variance: float, clusters: int
) -> dict[str, Any]:
    """Return the mean over the seeds with a 95% interval.

        V = s^2 / S + B,    df = V^2 / ((s^2 / S)^2 / (S - 1) + B^2 / (clusters - 1)),    mean -+ t_df sqrt(V)

    s is the standard deviation of the S seeds, B the variance of their mean when clusters are drawn anew, by the bootstrap. V is
    the variance of a bootstrap that draws seeds and, within them, clusters, without its bias of (S - 1) / S: three seeds drawn
    from three are too alike, and their percentiles hold the truth in 80% of cases instead of 95. Seeds that are tested on the
    same clusters share B; seeds with clusters of their own have part of B in s already, so that the interval is a little wide.
    How often it holds a known truth: docs/metrics.md, tests/statistics/test_over_seeds.py.
    Source: Satterthwaite, Biometrics Bulletin 2, 1946.

    Args:
        values: the metric of each seed, [S], finite.
        cluster_variance: B.
        clusters: number of clusters behind B, in all seeds.

    Returns:
        ``value``, ``ci95`` (None with a single seed), ``seeds`` (the values), ``sd`` (of the seeds, None with a single one).

    Raises:
        ValueError: if there is no value.
    """
    if not len(values):
        raise ValueError("values must hold at least one seed, got none; train one")
    count, mean = len(values), float(np.mean(values))
    found: dict[str, Any] = {
        "value": mean,
        "ci95": None,
        "sd": None,
        "seeds": [float(value) for value in values],
    }
    if count < 2:
        return found
    spread = float(np.var(values, ddof=1))
    variance = spread / count + cluster_variance
    half = 0.0
    if variance > 0:
        # variance is V, and V^2 / lost its degrees of freedom df.
        lost = (spread / count) ** 2 / (count - 1) + cluster_variance**2 / max(clusters - 1, 1)
        half = float(student.ppf((1 + LEVEL) / 2, variance**2 / lost) * np.sqrt(variance))
    return found | {"ci95": [mean - half, mean + half], "sd": float(np.sqrt(spread))}


# Estimates of single seeds -> their mean, their paired differences, and their spread.

BySeed = Mapping[int, Estimate]


def mean_over_seeds(by_seed: BySeed, *, resamples: int) -> Estimate:
    """Return the mean of the seeds' estimates, in the sample and in each resample.

    All seeds are read on the same resamples of patients, so the interval covers the patients of the split for these trainings.
    It is undefined where one of the seeds is: a mean of other seeds would be another quantity.
    """
    if not by_seed:
        return Estimate(
            float("nan"), np.full(resamples, np.nan), 0, "no seed was finished by both arms"
        )
    estimates = list(by_seed.values())
    undefined = [one for one in estimates if not np.isfinite(one.value)]
    return Estimate(
        value=float(np.mean([one.value for one in estimates])),
        resamples=np.mean([one.resamples for one in estimates], axis=0),  # [S, B] -> [B]
        n=min(one.n for one in estimates),
        reason=(undefined or estimates)[0].reason,
    )


def differences_by_seed(treated: BySeed, control: BySeed) -> dict[int, Estimate]:
    """Return treated - control of each seed that both have: the same initial weights, batches and resamples."""
    both = [seed for seed in treated if seed in control]
    found = {}
    for seed in both:
        # What is undefined on one side only (lesions without points) is undefined for that side's reason.
        one, other = treated[seed], control[seed]
        difference = paired_difference(one, other)
        reason = one.reason if np.isnan(one.value) or not np.isnan(other.value) else other.reason
        found[seed] = Estimate(difference.value, difference.resamples, difference.n, reason)
    return found


def interval_with_seeds(by_seed: BySeed, mean: Estimate, *, clusters: int) -> list[float] | None:
    """Return the 95% interval of the mean over seeds and clusters, None where it cannot be told."""
    values = [one.value for one in by_seed.values()]
    drawn = mean.resamples[np.isfinite(mean.resamples)]
    if not np.isfinite(mean.value) or len(drawn) < 2 or clusters < 2:
        return None
    variance = float(np.var(drawn, ddof=1))
    ends: list[float] | None = over_seeds(values, cluster_variance=variance, clusters=clusters)[
        "ci95"
    ]
    return ends


def spread(by_seed: BySeed) -> dict[str, Any]:
    """Return how far the seeds lie apart: number, standard deviation (n - 1), least, largest, and each value."""
    values = {str(seed): one.value for seed, one in by_seed.items() if np.isfinite(one.value)}
    numbers = list(values.values())
    return {
        "n": len(numbers),
        "sd": float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None,
        "min": min(numbers, default=None),
        "max": max(numbers, default=None),
        "values": values,
    }
