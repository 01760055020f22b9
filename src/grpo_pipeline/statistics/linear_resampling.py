"""Give intervals to statistics that resampling biases, by the jackknife.

A resample holds some units twice. A repeated unit raises the total but not the number of different units. A share of different
units is therefore too low in every resample, and its percentile interval lies below the value of the sample. A calibration error
or a distance sums absolute deviations, which the noise of a second draw increases: its interval lies above. Such a statistic is
linearised around the sample instead: the effect of each unit is measured by leaving it out. For a mean, that is exactly the
bootstrap.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_pipeline.statistics.weighted import Floats, divide

# Entries of one block of weights or distribution functions: 32 MB.
BLOCK = 1 << 22


def linear_resamples(
    value: float, without_each: Floats, weights: Floats, *, highest: float = 1.0
) -> Floats:
    """Compute a share of the sample in resamples of units, linearised by the jackknife, [B].

        D[b] = D - (C - 1) / C * sum_c (p[b, c] - 1) * (D_(-c) - D),   cut to [0, highest]
        p[b, c] = C * w[b, c] / sum_c w[b, c]

    Weights of 1 give D itself. D[b] is centred on D. Its variance is the jackknife's, which is on average not too small (Efron
    and Stein, Annals of Statistics 9, 1981, pages 586-596). If nothing is left without a unit, the resamples are undefined, NaN.
    The units may be part of the table's, so that their number varies between resamples: a share depends on their proportions p
    alone.

    Args:
        value: D, the statistic of all C units.
        without_each: D_(-c), [C]; NaN where it is undefined.
        weights: [B, C], how often a resample holds each unit.
        highest: the largest value that the statistic can take.
    """
    if not np.isfinite(without_each).all():
        return np.where((weights == 1).all(axis=1), value, np.nan)
    count, total = len(without_each), weights.sum(axis=1, keepdims=True)  # total: [B, 1]
    proportions = divide(weights * count, np.broadcast_to(total, weights.shape))
    moved = (count - 1) / count * (proportions - 1) @ (without_each - value)  # [B]
    return np.clip(value - moved, 0.0, highest)


def linear(
    statistic: Callable[[Floats], Floats],
    kinds: NDArray[Any],
    weights: Floats,
    *,
    highest: float = 1.0,
) -> Floats:
    """Compute a statistic in resamples of rows, linearised by the jackknife, [B].

    It is for a statistic that sampling noise itself biases, such as a sum of absolute deviations. Resampling adds the noise once
    more, so that every resample lies beyond the value of the sample.

    Args:
        statistic: weights [B, n] -> values [B]; called with all rows, and without a row of each kind.
        kinds: [n]; rows that are equal for the statistic have the same kind.
        weights: [B, n].
        highest: the largest value that the statistic can take.
    """
    _, first, kind = np.unique(kinds, return_index=True, return_inverse=True)
    rows, found = len(kinds), []
    step = max(1, BLOCK // rows)
    for start in range(0, len(first), step):
        left_out = first[start : start + step]
        others = np.ones((len(left_out), rows))  # [k, n]
        others[np.arange(len(left_out)), left_out] = 0.0
        found.append(statistic(others))
    value = float(statistic(np.ones((1, rows)))[0])
    return linear_resamples(value, np.concatenate(found)[kind.ravel()], weights, highest=highest)
