"""Many differences at once: bootstrap p-values, Holm's correction, simultaneous intervals. Knows no task."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from grpo_pipeline.pipelines.evaluation.bootstrap import LEVEL, Estimate, Floats

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
    values = np.array([one.value for one in estimates.values()])
    resamples = np.stack([one.resamples for one in estimates.values()])
    resamples = resamples[:, np.isfinite(resamples).all(axis=0)]
    errors = resamples.std(axis=1, ddof=1) if resamples.shape[1] > 1 else np.zeros(len(values))
    varies = errors > 0
    if not varies.any():
        return Simultaneous(float("nan"), {name: (one.value, one.value) for name, one in estimates.items()})
    distance = np.abs(resamples[varies] - values[varies, None]) / errors[varies, None]
    critical = float(np.quantile(distance.max(axis=0), LEVEL))
    reach = critical * errors
    bounds = zip((values - reach).tolist(), (values + reach).tolist(), strict=True)
    return Simultaneous(critical, dict(zip(estimates, bounds, strict=True)))
