"""Correct for many differences at once: bootstrap p-values, Holm's correction, simultaneous intervals."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from grpo_pipeline.statistics.bootstrap import LEVEL, Estimate, Floats, exact_interval
from grpo_pipeline.statistics.metric import Bounds

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
    """Compute Holm's adjusted p-values. Rejecting those below 0.05 errs at all with a probability below 0.05.

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
    """Compute intervals that hold all together with a probability of 95%.

        d_j +- c * se_j,  se_j = sd of d_j*,  c = 95% quantile over the resamples of max_j |d_j* - d_j| / se_j

    The estimates must share their resamples, so that c reflects their dependence. c lies between the quantile of a single
    interval (1.96 for a normal one) and Bonferroni's. A resample in which any estimate is undefined is left out. An estimate that
    never varies gets its exact interval at Bonferroni's level. Ends are cut to the range. Source: max-|t| of Westfall and Young,
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
