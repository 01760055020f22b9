"""Mean over training seeds, with an interval that holds both the choice of test examples and the luck of training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from grpo_pipeline.statistics.bootstrap import LEVEL, Estimate, paired_difference

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
