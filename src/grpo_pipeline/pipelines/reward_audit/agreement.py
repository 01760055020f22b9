"""Measure whether a reward and a metric rise together: inside groups, where a policy learns, and between examples."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from scipy.stats import rankdata

from grpo_pipeline.pipelines.reward_audit.group_spread import Names, find_constant
from grpo_pipeline.pipelines.reward_audit.samples import Floats
from grpo_pipeline.statistics.bootstrap import (
    Estimate,
)
from grpo_pipeline.statistics.weighted import divide

WITHIN_REASON = "reward and metric never both differ inside a group"

BETWEEN_REASON = "needs at least three examples, with different values of both"


def agree_within(
    reward: Floats, metric: Floats, weights: Floats, *, clusters: Names
) -> dict[str, Estimate]:
    """Correlate inside groups: each group's mean (of values, or of ranks) is subtracted, then all groups are pooled.

        sum_p sum_g (x - mean_p x)(y - mean_p y) / sqrt(sum (x - mean_p x)^2 * sum (y - mean_p y)^2)

    Only groups in which both vary take part. Differences between examples cannot produce this correlation.

    Args:
        reward: x, [n, E], NaN where not scored.
        metric: y, [n, E], NaN where undefined.
        weights: how often each resample holds each example, [B, n]; the first row is the sample itself.
        clusters: cluster of each example, [n].

    Returns:
        ``pearson`` of the values, ``spearman`` of the ranks; n counts the groups.
    """
    is_known = np.isfinite(reward) & np.isfinite(metric)
    x, y = (np.where(is_known, values, np.nan) for values in (reward, metric))
    keep = (is_known.sum(axis=1) > 1) & ~find_constant(x) & ~find_constant(y)
    found = _both_kinds(x[keep], y[keep], weights[:, keep], _pooled, reason=WITHIN_REASON)
    return _resting_on(clusters[keep], found)


def agree_between(
    reward: Floats, metric: Floats, weights: Floats, *, clusters: Names
) -> dict[str, Estimate]:
    """Correlate the means of the examples; arguments and result as ``agree_within``, n counts the examples.

    The ranks are those of the sample, also in the resamples.
    """
    is_known = np.isfinite(reward) & np.isfinite(metric)
    keep = is_known.any(axis=1)
    # Means over the known samples of each example that has any.
    counts = is_known[keep].sum(axis=1)  # [kept]
    x, y = (np.where(is_known, v, 0.0)[keep].sum(axis=1) / counts for v in (reward, metric))
    if len(x) < 3 or find_constant(x[None])[0] or find_constant(y[None])[0]:
        x, y, keep = x[:0], y[:0], np.zeros_like(keep)
    found = _both_kinds(x[None], y[None], weights[:, keep], _between, reason=BETWEEN_REASON)
    return _resting_on(clusters[keep], found)


def _resting_on(clusters: Names, found: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Add to the estimates the number of clusters that they rest on."""
    return {name: replace(one, clusters=len(set(clusters))) for name, one in found.items()}


def _both_kinds(
    x: Floats,
    y: Floats,
    weights: Floats,
    correlate: Callable[[Floats, Floats, Floats], Floats],
    *,
    reason: str,
) -> dict[str, Estimate]:
    """Correlate the values and their ranks along the last axis."""
    kinds = {"pearson": (x, y), "spearman": (_ranks(x), _ranks(y))}
    found = {name: correlate(a, b, weights) for name, (a, b) in kinds.items()}
    return {
        name: Estimate(
            float(r[0]),
            r[1:],
            n=weights.shape[1],
            reason=reason,
            clusters=0,
            bounds=(-1.0, 1.0),
        )
        for name, r in found.items()
    }


def _ranks(values: Floats) -> Floats:
    """Rank along the last axis, ties by their mean rank; NaN stays NaN."""
    return values if values.size == 0 else np.asarray(rankdata(values, axis=-1, nan_policy="omit"))


def _pooled(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return the pooled correlation of groups [n, E] in each resample, [B]."""
    x, y = (
        (np.nan_to_num(values - np.nanmean(values, axis=1, keepdims=True)) for values in (x, y))
        if len(x)
        else (x, y)
    )
    # Sums of each group, [n], and of each resample, [B, n] @ [n] -> [B].
    return _correlation(*(weights @ sums.sum(axis=1) for sums in (x * y, x * x, y * y)))


def _between(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return the correlation of examples x, y [1, n] in each resample, [B]."""
    count = weights.sum(axis=1)  # [B]
    # Shifted first: the moments of values far from 0 would cancel.
    a, b = (values[0] - (values.mean() if values.size else 0.0) for values in (x, y))

    def moment(u: Floats, v: Floats) -> Floats:
        return divide(weights @ (u * v), count) - divide(weights @ u, count) * divide(
            weights @ v, count
        )

    return _correlation(moment(a, b), moment(a, a), moment(b, b))


def _correlation(xy: Floats, xx: Floats, yy: Floats) -> Floats:
    """Compute xy / sqrt(xx * yy) of each resample, [B]; NaN where a variance is negligible beside the largest."""
    differs = [
        np.isfinite(v) & (v > 1e-12 * np.max(v, where=np.isfinite(v), initial=0.0))
        for v in (xx, yy)
    ]
    spread: Floats = np.sqrt(np.where(differs[0] & differs[1], xx * yy, 0.0))
    found: Floats = np.clip(divide(xy, spread), -1.0, 1.0)
    return found
