"""Give the mean over training seeds an interval, which covers the choice of test examples and the luck of training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from scipy.stats import t as student

from grpo_pipeline.statistics.bootstrap import LEVEL
from grpo_pipeline.statistics.metric import UNBOUNDED, Bounds
from grpo_pipeline.statistics.multiplicity import cut

METHOD = "t interval, seeds and clusters: variance of the bootstrap over both, degrees of freedom by Satterthwaite"

NOT_COVERED = (
    "The intervals hold the choice of test examples, not the luck of training: another seed may lie outside. "
    "make results trains on several seeds, the pipeline compare many arms."
)

FEWEST_DEGREES = 2.0
"""With two seeds that lie far apart there is one degree of freedom: t is 12.7, and an interval would say nothing."""


@dataclass(frozen=True)
class SeedMean:
    """The mean over seeds, with its error.

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
        """Compute the derivative of the logit at the value, from the range to [0, 1]; 0 where there is no such scale."""
        low, high = self.bounds
        if not (np.isfinite(low) and np.isfinite(high) and low < self.value < high):
            return 0.0
        return 1 / (self.value - low) + 1 / (high - self.value)

    def _logit(self, value: float) -> float:
        low, high = self.bounds
        return float(np.log(value - low) - np.log(high - value))

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Compute mean -+ t sqrt(V), on the scale of the logit where the range has two ends, else cut to the range."""
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
    """Compute the mean over the seeds with its error.

        V = s^2 / S + B,    df = V^2 / ((s^2 / S)^2 / (S - 1) + B^2 / (clusters - 1))

    s is the standard deviation of the S seeds. B is the bootstrap's variance of their mean when clusters are drawn anew. V is the
    variance of a bootstrap that draws seeds and, within them, clusters, without its bias of (S - 1) / S. Three seeds drawn from
    three are too alike: their percentiles cover the truth in 80% of cases instead of 95. Seeds that are tested on the same
    clusters share B. Seeds with clusters of their own have part of B in s already, so that the interval is a little wide. How
    often it holds a known truth: docs/metrics.md, tests/statistics/test_over_seeds.py. Source: Satterthwaite, Biometrics Bulletin
    2, 1946.

    Args:
        values: the metric of each seed, [S], S >= 2, finite.
        cluster_variance: B.
        clusters: number of clusters behind B, in all seeds.
        bounds: the range of the metric.

    Returns:
        None where fewer than ``FEWEST_DEGREES`` degrees of freedom are left, because two seeds differ too much.
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
