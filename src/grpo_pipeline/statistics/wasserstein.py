"""Measure the Wasserstein distance between a weighted sample and a fixed one, for all resamples at once."""

import numpy as np

from grpo_pipeline.statistics.linear_resampling import BLOCK
from grpo_pipeline.statistics.weighted import Floats


def wasserstein_1(values: Floats, weights: Floats, reference: Floats) -> Floats:
    """Return the Wasserstein-1 distance of each weighted sample to a reference, in units of the values, [B].

        W1[b] = integral |F_b(x) - F(x)| dx,   F_b(x) = sum_i w[b, i] [x_i <= x] / sum_i w[b, i]

    Both distribution functions are steps: the integral is a sum over the distances of neighbouring values. Source: Vallender,
    Theory of Probability and Its Applications 18, 1974.

    Args:
        values: [n], finite.
        weights: [B, n], how often a resample holds each value.
        reference: [m], finite, m >= 1; each counts once.

    Returns:
        float64 [B]; NaN in a resample without a value.
    """
    support = np.unique(np.concatenate([values, reference]))  # [u]
    widths = np.diff(support)  # [u - 1]
    order = np.argsort(values, kind="stable")
    until = np.searchsorted(values[order], support[:-1], side="right")  # [u - 1]
    # F at each value of the support but the last, [u - 1]; ``until`` counts the values up to there.
    fixed = np.searchsorted(np.sort(reference), support[:-1], side="right") / len(reference)
    distances = np.full(len(weights), np.nan)
    step = max(1, BLOCK // max(len(support), len(values)))
    for start in range(0, len(weights), step):
        # Weight of the b resamples of a block up to each value, [b, n].
        ranked = np.cumsum(weights[start : start + step, order], axis=1)
        total = ranked[:, -1:] if len(values) else np.zeros((len(ranked), 1))
        below = np.concatenate([np.zeros((len(ranked), 1)), ranked], axis=1)[:, until]  # [b, u - 1]
        # F_b at the same places, [b, u - 1].
        shares = np.divide(below, total, out=np.full(below.shape, np.nan), where=total > 0)
        distances[start : start + step] = np.where(
            total[:, 0] > 0, np.abs(shares - fixed) @ widths, np.nan
        )
    return distances
