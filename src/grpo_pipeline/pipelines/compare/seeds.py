"""Estimates of single seeds -> their mean, their paired differences, and their spread."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from grpo_pipeline.pipelines.evaluation.bootstrap import Estimate, paired_difference
from grpo_pipeline.pipelines.evaluation.over_seeds import over_seeds

BySeed = Mapping[int, Estimate]


def mean_over_seeds(by_seed: BySeed, *, resamples: int) -> Estimate:
    """Return the mean of the seeds' estimates, in the sample and in each resample.

    All seeds are read on the same resamples of patients, so the interval covers the patients of the split for these trainings.
    It is undefined where one of the seeds is: a mean of other seeds would be another quantity.
    """
    if not by_seed:
        return Estimate(float("nan"), np.full(resamples, np.nan), 0, "no seed was finished by both arms")
    estimates = list(by_seed.values())
    undefined = [one for one in estimates if not np.isfinite(one.value)]
    return Estimate(
        value=float(np.mean([one.value for one in estimates])),
        resamples=np.mean([one.resamples for one in estimates], axis=0),
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
    """Return the 95% interval of the mean over seeds and clusters (evaluation.over_seeds), None where it cannot be told."""
    values = [one.value for one in by_seed.values()]
    drawn = mean.resamples[np.isfinite(mean.resamples)]
    if not np.isfinite(mean.value) or len(drawn) < 2 or clusters < 2:
        return None
    variance = float(np.var(drawn, ddof=1))
    ends: list[float] | None = over_seeds(values, cluster_variance=variance, clusters=clusters)["ci95"]
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
