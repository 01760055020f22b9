"""Intervals of statistics that count different things, for which repeated rows of a bootstrap resample are no new draws.

A resample holds some units twice. A repeated unit adds to the total and nothing different, so that a share of different things
is too low in every resample: its percentile interval lies below the value of the sample. Such a statistic is taken as linear
around the sample instead, with the effect of each unit measured by leaving it out. For a mean that is exactly the bootstrap.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def linear_resamples(value: float, without_each: Floats, weights: Floats) -> Floats:
    """Return a share of the sample, made to vary over resamples of units as the jackknife says, [B].

        D[b] = D - (C - 1) / C * sum_c (w[b, c] - 1) * D_(-c),   cut to [0, 1]

    Weights of 1 give D itself. The variance of D[b] is the jackknife's, which is on average not too small (Efron and Stein,
    Annals of Statistics 9, 1981, pages 586-596), and its middle is D. Where leaving a unit out leaves nothing, D is given and
    nothing varies: the resamples are undefined, NaN.

    Args:
        value: D, the statistic of all C units.
        without_each: D_(-c), [C]; NaN where it is undefined.
        weights: [B, C], how often a resample holds each unit.
    """
    if not np.isfinite(without_each).all():
        return np.where((weights == 1).all(axis=1), value, np.nan)
    share = (len(without_each) - 1) / len(without_each)
    return np.clip(value - share * (weights - 1) @ without_each, 0.0, 1.0)
