"""Clustered bootstrap: weights per row, percentile intervals, paired differences, and the mean over training seeds.

The interval over seeds holds both the choice of test examples and the luck of training.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import norm
from scipy.stats import t as student

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.statistics.metric import UNBOUNDED, Bounds

Floats = NDArray[np.float64]
LEVEL = 0.95
FEW_CLUSTERS = 10
"""With fewer clusters there is no interval: of a class with 5 patients it holds the truth in 81 to 88 of 100 cases, not 95."""


@dataclass(frozen=True)
class Estimate:
    """A statistic of the sample and of each resample.

    Attributes:
        value: the statistic of the whole sample; NaN where undefined.
        resamples: float64 [B]; NaN in a resample that leaves it undefined.
        n: number of units (rows, clusters) that the value rests on.
        reason: the sentence to report when the value is undefined.
        clusters: number of clusters that the value rests on; of what compares two classes, those of the rarer one.
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
        """The resamples that leave the statistic defined."""
        return self.resamples[np.isfinite(self.resamples)]

    @property
    def varies(self) -> bool:
        """Whether the resamples differ by more than rounding."""
        rounding = 1e-12 + 1e-9 * abs(self.value)
        return bool(np.ptp(self.defined) > rounding) if len(self.defined) else False


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
        clusters=min(treated.clusters, control.clusters),
        bounds=(
            treated.bounds[0] - control.bounds[1],
            treated.bounds[1] - control.bounds[0],
        ),
    )


def exact_interval(
    value: float, bounds: Bounds, *, clusters: int, level: float = LEVEL
) -> tuple[float, float]:
    """Return the interval of a value that no resample changes; of a statistic without two bounds the value alone.

        u = 1 - ((1 - level) / 2)^(1 / C),    [(1 - u) v + u a, (1 - u) v + u b]

    All C clusters say v. Clusters of another kind may exist: with a share of u of them, none is among C in one of 40 cases. At
    worst they lie at the ends of the range [a, b]. For a share whose clusters are all right (v = b) that is Clopper and
    Pearson's interval of C successes in C (Biometrika 26, 1934), which the rule of three approximates.
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
    """Return why a value of so few clusters has no interval; None where they are enough."""
    if clusters >= FEW_CLUSTERS:
        return None
    named = "1 cluster" if clusters == 1 else f"{clusters} clusters"
    return f"no interval: {named}, fewer than {FEW_CLUSTERS}"


ALIKE = "every resample gives this value"


def describe(estimate: Estimate, *, max_undefined: float) -> dict[str, Any]:
    """Return ``{"value", "ci95", "n"}`` for JSON, with a ``"reason"`` wherever one of them is null.

    A value that rests on fewer than ``FEW_CLUSTERS`` clusters has no interval: whatever reads one then says nothing. Undefined
    resamples are left out of the interval and counted in ``"undefined_resamples"``; above the share ``max_undefined`` they are
    too many for an honest interval and none is given. Beside an interval, ``"se"`` is the standard deviation of the resamples,
    and a ``"note"`` says where no resample differs.
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


def p_value(difference: Estimate) -> float:
    """Return the p-value of "the difference is 0", which agrees with ``interval``.

    Where no resample differs it inverts ``exact_interval``: the least level at which the clusters that were not seen could make
    the difference 0. For clusters that are all won it is that of the sign test.
    """
    value, (low, high) = difference.value, difference.bounds
    if difference.varies or not (np.isfinite(low) and np.isfinite(high)):
        return two_sided_p(difference.resamples)
    worst = low if value > 0 else high
    # The share u of unseen clusters at which (1 - u) v + u * worst = 0.
    needed = abs(value) / (abs(value) + abs(worst)) if value else 0.0
    return float(min(1.0, 2 * (1 - needed) ** difference.clusters))


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
    varies gets its exact interval at Bonferroni's level. Ends are cut to the range. Source: max-|t| of Westfall and Young,
    Resampling-Based Multiple Testing, 1993, with the bootstrap's standard error in the place of one computed in each resample.
    """
    if not estimates:
        return Simultaneous(float("nan"), {})
    level = 1 - (1 - LEVEL) / len(estimates)
    intervals: dict[Any, tuple[float, float]] = {}
    for name, one in estimates.items():
        if not one.varies:
            intervals[name] = exact_interval(
                one.value, one.bounds, clusters=one.clusters, level=level
            )
    varying = {name: one for name, one in estimates.items() if one.varies}
    if not varying:
        return Simultaneous(float("nan"), intervals)
    values = np.array([one.value for one in varying.values()])  # d_j: [J]
    resamples = np.stack([one.resamples for one in varying.values()])  # d_j*: [J, B]
    resamples = resamples[:, np.isfinite(resamples).all(axis=0)]
    errors = resamples.std(axis=1, ddof=1)
    # |d_j* - d_j| / se_j; c is a quantile of the largest of each resample, [B].
    distance = np.abs(resamples - values[:, None]) / errors[:, None]
    critical = float(np.quantile(distance.max(axis=0), LEVEL))
    for (name, one), error in zip(varying.items(), errors, strict=True):
        intervals[name] = cut(one.value, critical * float(error), one.bounds)
    return Simultaneous(critical, {name: intervals[name] for name in estimates})


def cut(value: float, reach: float, bounds: Bounds) -> tuple[float, float]:
    """Return value - reach and value + reach, no further than the range goes."""
    return max(value - reach, min(bounds[0], value)), min(value + reach, max(bounds[1], value))


METHOD = "t interval, seeds and clusters: variance of the bootstrap over both, degrees of freedom by Satterthwaite"
NOT_COVERED = (
    "The intervals hold the choice of test examples, not the luck of training: another seed may lie outside. "
    "make results trains on several seeds, the pipeline compare many arms."
)
FEWEST_DEGREES = 2.0
"""With two seeds that lie far apart there is one degree of freedom: t is 12.7, and an interval would say nothing."""


@dataclass(frozen=True)
class SeedMean:
    """The mean over seeds, and how far it may be off.

    Attributes:
        value: the mean.
        error: sqrt(V), its standard error over seeds and clusters.
        degrees: degrees of freedom of V.
        bounds: the range of the statistic.
    """

    value: float
    error: float
    degrees: float
    bounds: Bounds

    @property
    def _slope(self) -> float:
        """The derivative of the logit at the value, from the range to [0, 1]; 0 where there is no such scale."""
        low, high = self.bounds
        if not (np.isfinite(low) and np.isfinite(high) and low < self.value < high):
            return 0.0
        return 1 / (self.value - low) + 1 / (high - self.value)

    def _logit(self, value: float) -> float:
        low, high = self.bounds
        return float(np.log(value - low) - np.log(high - value))

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return mean -+ t sqrt(V) on the scale of the logit where the range has two ends, else cut to the range."""
        reach = float(student.ppf((1 + level) / 2, self.degrees)) * self.error
        if not self._slope:
            return cut(self.value, reach, self.bounds)
        low, high = self.bounds
        middle, reach = self._logit(self.value), reach * self._slope
        ends = (low + (high - low) * float(expit(middle + side * reach)) for side in (-1, 1))
        return next(ends), next(ends)

    def p_value(self) -> float:
        """Return the p-value of "the mean is 0": the least level at which ``interval`` holds 0."""
        apart = abs(self.value)
        if self._slope:
            apart = abs(self._logit(self.value) - self._logit(0.0)) / self._slope
        return float(2 * student.sf(apart / self.error, self.degrees))


def mean_of_seeds(
    values: Sequence[float], *, cluster_variance: float, clusters: int, bounds: Bounds = UNBOUNDED
) -> SeedMean | None:
    """Return the mean over the seeds with its error, None where it cannot be told.

        V = s^2 / S + B,    df = V^2 / ((s^2 / S)^2 / (S - 1) + B^2 / (clusters - 1))

    s is the standard deviation of the S seeds, B the variance of their mean when clusters are drawn anew, by the bootstrap. V is
    the variance of a bootstrap that draws seeds and, within them, clusters, without its bias of (S - 1) / S: three seeds drawn
    from three are too alike, and their percentiles hold the truth in 80% of cases instead of 95. Seeds that are tested on the
    same clusters share B; seeds with clusters of their own have part of B in s already, so that the interval is a little wide.
    How often it holds a known truth: docs/metrics.md, tests/statistics/test_over_seeds.py.
    Source: Satterthwaite, Biometrics Bulletin 2, 1946.

    Args:
        values: the metric of each seed, [S], S >= 2, finite.
        cluster_variance: B.
        clusters: number of clusters behind B, in all seeds.
        bounds: the range of the metric.

    Returns:
        None where two seeds lie so far apart that fewer than ``FEWEST_DEGREES`` degrees of freedom are left.
    """
    count = len(values)
    spread = float(np.var(values, ddof=1)) / count
    variance = spread + cluster_variance
    # variance is V, and V^2 / lost its degrees of freedom df.
    lost = spread**2 / (count - 1) + cluster_variance**2 / max(clusters - 1, 1)
    degrees = variance**2 / lost if lost else np.inf
    if degrees < FEWEST_DEGREES * (1 - 1e-9):
        return None
    return SeedMean(float(np.mean(values)), float(np.sqrt(variance)), degrees, bounds)


TOO_FEW_SEEDS = "no interval: too few seeds, {} that differ by more than the clusters explain"


def over_seeds(
    values: Sequence[float],
    *,
    cluster_variance: float,
    clusters: int,
    bounds: Bounds = UNBOUNDED,
) -> dict[str, Any]:
    """Return the mean over the seeds with a 95% interval; arguments as ``mean_of_seeds``, of any number of seeds.

    Returns:
        ``value``, ``ci95``, ``seeds`` (the values), ``sd`` (of the seeds, None with a single one); where ``ci95`` is None also
        ``reason``.

    Raises:
        ValueError: if there is no value.
    """
    if not len(values):
        raise ValueError("values must hold at least one seed, got none; train one")
    count, mean = len(values), float(np.mean(values))
    found: dict[str, Any] = {
        "value": mean,
        "ci95": None,
        "sd": float(np.std(values, ddof=1)) if count > 1 else None,
        "seeds": [float(value) for value in values],
    }
    if count < 2:
        return found | {"reason": "no interval: a single seed"}
    told = mean_of_seeds(
        values, cluster_variance=cluster_variance, clusters=clusters, bounds=bounds
    )
    if told is None:
        return found | {"reason": TOO_FEW_SEEDS.format(count)}
    if told.error:
        return found | {"ci95": list(told.interval())}
    return found | {"ci95": list(exact_interval(mean, bounds, clusters=clusters))}


# Estimates of single seeds -> their mean, their paired differences, and their spread.

BySeed = Mapping[int, Estimate]


def mean_over_seeds(by_seed: BySeed, *, resamples: int) -> Estimate:
    """Return the mean of the seeds' estimates, in the sample and in each resample.

    All seeds are read on the same resamples of patients, so the interval covers the patients of the split for these trainings.
    It is undefined where one of the seeds is: a mean of other seeds would be another quantity.
    """
    if not by_seed:
        return Estimate(
            float("nan"), np.full(resamples, np.nan), 0, "no seed was finished by both arms", 0
        )
    estimates = list(by_seed.values())
    undefined = [one for one in estimates if not np.isfinite(one.value)]
    return Estimate(
        value=float(np.mean([one.value for one in estimates])),
        resamples=np.mean([one.resamples for one in estimates], axis=0),  # [S, B] -> [B]
        n=min(one.n for one in estimates),
        reason=(undefined or estimates)[0].reason,
        clusters=min(one.clusters for one in estimates),
        bounds=estimates[0].bounds,
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
        found[seed] = replace(difference, reason=reason)
    return found


def seed_mean(by_seed: BySeed, mean: Estimate) -> SeedMean | None:
    """Return the mean of several seeds with its error over seeds and clusters, None where it cannot be told."""
    variance = float(np.var(mean.defined, ddof=1)) if mean.varies else 0.0
    return mean_of_seeds(
        [one.value for one in by_seed.values()],
        cluster_variance=variance,
        clusters=mean.clusters,
        bounds=mean.bounds,
    )


def describe_seeds(by_seed: BySeed, *, resamples: int, max_undefined: float) -> dict[str, Any]:
    """Return the mean over the seeds for JSON, as ``describe``, with the interval that decides.

    ``ci95`` holds seeds and clusters and is never inside ``ci95_clusters``, which holds the clusters alone, for these trainings.
    With a single seed both are the same. Where seeds are too few to tell, ``ci95`` is None. ``seeds`` is their spread.
    """
    mean = mean_over_seeds(by_seed, resamples=resamples)
    entry = describe(mean, max_undefined=max_undefined)
    ends = entry["ci95"]
    entry |= {"ci95_clusters": ends, "seeds": spread(by_seed)}
    if ends is None or len(by_seed) < 2:
        return entry
    told = seed_mean(by_seed, mean)
    if told is None:
        return entry | {"ci95": None, "reason": TOO_FEW_SEEDS.format(len(by_seed))}
    return entry | {"ci95": list(hull(ends, told.interval() if told.error else ends))}


def hull(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return the interval that holds both."""
    return min(one[0], other[0]), max(one[1], other[1])


def correct_for_number(
    gaps: Mapping[K, BySeed], *, resamples: int
) -> tuple[dict[K, dict[str, Any]], float]:
    """Return ``p``, ``p_holm`` and ``ci95_simultaneous`` of each difference, and c of ``simultaneous_intervals``.

    All of them hold the luck of the seeds where there are several. A p-value is the larger of that of the clusters and that of
    seeds and clusters, as ``ci95`` is the hull of the two intervals. A simultaneous interval over seeds is taken at the level
    2 Phi(c) - 1, at which the intervals over clusters hold together.

    Args:
        gaps: differences that have an interval (``describe_seeds``).
        resamples: B.
    """
    means = {name: mean_over_seeds(gap, resamples=resamples) for name, gap in gaps.items()}
    together = simultaneous_intervals(means)
    level = 1 - (1 - LEVEL) / max(len(means), 1)
    if np.isfinite(together.critical):
        level = float(2 * norm.cdf(together.critical) - 1)
    p_values, bounds = {}, {}
    for name, mean in means.items():
        p_values[name], bounds[name] = p_value(mean), together.intervals[name]
        told = seed_mean(gaps[name], mean) if len(gaps[name]) > 1 else None
        if told is not None and told.error:
            p_values[name] = max(p_values[name], told.p_value())
            bounds[name] = hull(bounds[name], told.interval(level))
    adjusted = holm(p_values)
    found = {
        name: {"p": p, "p_holm": adjusted[name], "ci95_simultaneous": list(bounds[name])}
        for name, p in p_values.items()
    }
    return found, together.critical


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
