"""Turn estimates of single seeds into their mean, their paired differences, and their spread."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import norm

from grpo_pipeline.statistics.bootstrap import (
    LEVEL,
    Estimate,
    describe,
    exact_interval,
    paired_difference,
)
from grpo_pipeline.statistics.metric import UNBOUNDED, Bounds
from grpo_pipeline.statistics.multiplicity import K, holm, p_value, simultaneous_intervals
from grpo_pipeline.statistics.seed_interval import SeedMean, mean_of_seeds

TOO_FEW_SEEDS = "no interval: too few seeds, {} that differ by more than the clusters explain"

BySeed = Mapping[int, Estimate]


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
        # A metric that is undefined on one side (lesions without points) takes the reason of that side.
        one, other = treated[seed], control[seed]
        difference = paired_difference(one, other)
        reason = one.reason if np.isnan(one.value) or not np.isnan(other.value) else other.reason
        found[seed] = replace(difference, reason=reason)
    return found


def seed_mean(by_seed: BySeed, mean: Estimate) -> SeedMean | None:
    """Compute the mean of several seeds with its error over seeds and clusters; None where the error is unknown."""
    variance = float(np.var(mean.defined, ddof=1)) if mean.varies else 0.0
    return mean_of_seeds(
        [one.value for one in by_seed.values()],
        cluster_variance=variance,
        clusters=mean.clusters,
        bounds=mean.bounds,
    )


def describe_seeds(by_seed: BySeed, *, resamples: int) -> dict[str, Any]:
    """Return the mean over the seeds for JSON, as ``describe``, with the interval that decides.

    ``ci95`` holds seeds and clusters and is never inside ``ci95_clusters``, which holds the clusters alone, for these trainings.
    With a single seed both are the same. Where seeds are too few to tell, ``ci95`` is None. ``seeds`` is their spread.
    """
    mean = mean_over_seeds(by_seed, resamples=resamples)
    entry = describe(mean)
    ends = entry["ci95"]
    entry |= {"ci95_clusters": ends, "seeds": spread(by_seed)}
    if ends is None or len(by_seed) < 2:
        return entry
    told = seed_mean(by_seed, mean)
    if told is None:
        return entry | {"ci95": None, "reason": TOO_FEW_SEEDS.format(len(by_seed))}
    return entry | {"ci95": list(hull(ends, told.interval() if told.error else ends))}


def hull(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Join two intervals into the smallest that holds both."""
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
    """Describe the spread of the seeds: number, standard deviation (n - 1), least, largest, and each value."""
    values = {str(seed): one.value for seed, one in by_seed.items() if np.isfinite(one.value)}
    numbers = list(values.values())
    return {
        "n": len(numbers),
        "sd": float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None,
        "min": min(numbers, default=None),
        "max": max(numbers, default=None),
        "values": values,
    }
