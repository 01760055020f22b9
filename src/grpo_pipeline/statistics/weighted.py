"""Weighted statistics such as AUROC, computed for all resamples at once.

A weight is how often a resample holds a row: weights [B, n] -> values [B]. Every statistic equals the usual one on a
table in which row i is repeated weights[b, i] times; where that table leaves it undefined, the value is NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Ranking = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""A statistic of scores [n], of which rows are positive [n] and of weights [B, n]."""
Mass = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""How much a resample holds of what a statistic is over, from which rows are positive [n] and weights [B, n]."""

# 0.56 * 25 is 14.000000000000002 in float64: a share that meets the level must not miss it by rounding
# (test_sensitivity_is_read_on_the_correct_side).
LEVEL_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Tally:
    """Weight of positives and negatives at each distinct score, ascending; both [B, u]."""

    positives: Floats
    negatives: Floats

    @property
    def is_defined(self) -> NDArray[np.bool_]:
        """True where a resample holds both classes, [B]."""
        smaller = np.minimum(self.positives.sum(axis=1), self.negatives.sum(axis=1))
        return np.asarray(smaller > 0)


def tally(scores: Floats, is_positive: NDArray[np.bool_], weights: Floats) -> Tally:
    """Sort once and add up the weights of tied scores; scores [n], is_positive [n], weights [B, n], n >= 1."""
    order = np.argsort(scores, kind="stable")
    ranked = weights[:, order]  # [B, n]
    starts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf) > 0)  # [u], first of each tie
    positive = is_positive[order]
    return Tally(
        positives=np.add.reduceat(ranked * positive, starts, axis=1),
        negatives=np.add.reduceat(ranked * ~positive, starts, axis=1),
    )


def divide(numerator: Floats, denominator: Floats) -> Floats:
    """Divide; NaN where the denominator is 0."""
    quotient = np.full(np.shape(numerator), np.nan)
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return quotient


def count_positives(is_positive: NDArray[np.bool_], weights: Floats) -> Floats:
    """Return the number of positives in each resample, [B]."""
    return weights @ is_positive


def count_pairs(is_positive: NDArray[np.bool_], weights: Floats) -> Floats:
    """Return the number of pairs of a positive and a negative in each resample, [B]."""
    return (weights @ is_positive) * (weights @ ~is_positive)


def auroc(scores: Floats, is_positive: NDArray[np.bool_], weights: Floats) -> Floats:
    """Return the probability that a positive outranks a negative, a tie counting one half.

        sum_u pos(u) * (neg(< u) + neg(u) / 2) / (P * N)

    The Mann-Whitney statistic; equals the trapezoid area under the ROC curve. Undefined with a single class.
    """
    counts = tally(scores, is_positive, weights)
    below = np.cumsum(counts.negatives, axis=1) - counts.negatives / 2  # neg(< u) + neg(u) / 2
    wins = (counts.positives * below).sum(axis=1)  # [B]
    return divide(wins, counts.positives.sum(axis=1) * counts.negatives.sum(axis=1))


def average_precision(scores: Floats, is_positive: NDArray[np.bool_], weights: Floats) -> Floats:
    """Return sum_u (recall(u) - recall(next higher u)) * precision(u) over the distinct scores u; no interpolation.

    Source: the definition of scikit-learn's average_precision_score. Undefined with a single class (where it would
    be a constant 1, or 0/0).
    """
    counts = tally(scores, is_positive, weights)
    # From the highest score down: the positives, and all rows, that a threshold at u calls positive, [B, u].
    above = np.cumsum(counts.positives[:, ::-1], axis=1)
    called = above + np.cumsum(counts.negatives[:, ::-1], axis=1)
    precision = np.divide(above, called, out=np.zeros_like(above), where=called > 0)
    value = divide(
        (counts.positives[:, ::-1] * precision).sum(axis=1), counts.positives.sum(axis=1)
    )
    return np.where(counts.is_defined, value, np.nan)


def sensitivity_at_specificity(
    scores: Floats, is_positive: NDArray[np.bool_], weights: Floats, *, level: float
) -> Floats:
    """Return the largest sensitivity among the thresholds whose specificity is at least ``level``.

    A row is called positive when score >= t. The threshold t is the lowest observed score with share of negatives
    below t >= level: it is read on the negatives' scores. Tied rows fall on one side together, so a negative that
    ties with t is a false positive. Without such a score nothing is called positive: 0. Undefined with a single class.
    """
    return sensitivity_of_tally(tally(scores, is_positive, weights), level=level)


def sensitivity_of_tally(counts: Tally, *, level: float) -> Floats:
    """Return sensitivity_at_specificity from sorted counts; one point of the ROC curve per call."""
    negatives = counts.negatives.sum(axis=1)  # [B]
    below = np.cumsum(counts.negatives, axis=1) - counts.negatives  # negatives below t, [B, u]
    is_specific = below >= (level - LEVEL_TOLERANCE) * negatives[:, None]
    hits = (counts.positives * is_specific).sum(axis=1)  # [B]
    return np.where(counts.is_defined, divide(hits, counts.positives.sum(axis=1)), np.nan)


def mean(values: Floats, weights: Floats) -> Floats:
    """Return sum_i w_i x_i / sum_i w_i; undefined in a resample without a row."""
    return divide(weights @ values, weights.sum(axis=1))


def mean_ratio(numerators: Floats, denominators: Floats, weights: Floats) -> Floats:
    """Return mean(numerators) / mean(denominators); undefined where the denominators sum to 0."""
    return divide(weights @ numerators, weights @ denominators)


def balanced_accuracy(
    predicted: NDArray[np.int64], true: NDArray[np.int64], weights: Floats, *, classes: int
) -> Floats:
    """Return the mean over the classes of the share of their rows that is predicted right; undefined where a class has none.

    Args:
        predicted: number of the class, from 0, [n].
        true: the same, [n].
        weights: [B, n].
        classes: their number C.
    """
    is_of = true[:, None] == np.arange(classes)  # [n, C]
    recall = divide(weights @ (is_of & (predicted == true)[:, None]), weights @ is_of)  # [B, C]
    return np.asarray(recall.mean(axis=1))


def quadratic_kappa(
    predicted: NDArray[np.int64], true: NDArray[np.int64], weights: Floats, *, classes: int
) -> Floats:
    """Return Cohen's kappa with quadratic weights: agreement of grades, a miss by two counting four times one by one.

        1 - sum_ij (i - j)^2 O_ij / sum_ij (i - j)^2 E_ij,   E_ij = sum_j O_ij * sum_i O_ij / sum O

    Source: Cohen 1968, "Weighted kappa". Undefined where both hold one and the same grade. Arguments as ``balanced_accuracy``.
    """
    cell = (true * classes + predicted)[:, None] == np.arange(classes * classes)  # [n, C * C]
    seen = (weights @ cell).reshape(-1, classes, classes)  # [B, true, predicted]
    # E_ij * sum O; the last line multiplies the other side by sum O, too.
    by_chance = seen.sum(2)[:, :, None] * seen.sum(1)[:, None]  # [B, C, C]
    apart = np.subtract.outer(np.arange(classes), np.arange(classes)) ** 2  # (i - j)^2: [C, C]
    # Both sums over i and j, [B].
    missed, expected = ((apart * counts).sum((1, 2)) for counts in (seen, by_chance))
    return 1 - divide(missed * seen.sum((1, 2)), expected)


def calibration_error(
    probs: Floats, is_positive: NDArray[np.bool_], weights: Floats, *, bins: int
) -> Floats:
    """Return the expected calibration error over equal-width bins of [0, 1].

        sum_bin |sum_{i in bin} w_i (y_i - p_i)| / sum_i w_i

    Bin k holds k/bins <= p < (k+1)/bins; the last one includes 1. Source: Naeini et al., 2015 (AAAI), eq. 3.
    """
    bin_of = np.minimum((probs * bins).astype(np.int64), bins - 1)
    residuals = np.zeros((len(probs), bins))
    residuals[np.arange(len(probs)), bin_of] = is_positive - probs  # [n, bins]
    return divide(np.abs(weights @ residuals).sum(axis=1), weights.sum(axis=1))


# Intervals of statistics that resampling moves to one side.
#
# A resample holds some units twice. A repeated unit adds to the total and nothing different, so that a share of different things
# is too low in every resample: its percentile interval lies below the value of the sample. A calibration error or a distance adds
# up absolute deviations, which the noise of a second draw makes larger: its interval lies above. Such a statistic is taken as
# linear around the sample instead, with the effect of each unit measured by leaving it out. For a mean that is exactly the
# bootstrap.

# Entries of one block of weights or distribution functions: 32 MB.
BLOCK = 1 << 22


def linear_resamples(
    value: float, without_each: Floats, weights: Floats, *, highest: float = 1.0
) -> Floats:
    """Return a share of the sample, made to vary over resamples of units as the jackknife says, [B].

        D[b] = D - (C - 1) / C * sum_c (p[b, c] - 1) * (D_(-c) - D),   cut to [0, highest]
        p[b, c] = C * w[b, c] / sum_c w[b, c]

    Weights of 1 give D itself. The variance of D[b] is the jackknife's, which is on average not too small (Efron and Stein,
    Annals of Statistics 9, 1981, pages 586-596), and its middle is D. Where leaving a unit out leaves nothing, D is given and
    nothing varies: the resamples are undefined, NaN. The units may be some of the table's, of which a resample holds now more,
    now fewer: a share depends on their proportions p alone.

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
    """Return a statistic of weights [B, n] -> [B], made to vary over resamples of rows as the jackknife says, [B].

    For a statistic that sampling noise itself moves to one side, such as a sum of absolute deviations: resampling adds noise
    once more, and every resample lies beyond the value of the sample.

    Args:
        statistic: computed without one row of each kind, and of all rows.
        kinds: [n]; rows that are equal for the statistic have one kind.
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


# Distance of a weighted sample to a fixed one, for all resamples at once.


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
