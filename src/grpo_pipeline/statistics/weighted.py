"""Weighted statistics such as AUROC, computed for all resamples at once.

A weight is the number of times that a resample holds a row: weights [B, n] -> values [B]. Every statistic equals the usual one on
a table that repeats row i weights[b, i] times. Where it is undefined on that table, the value is NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass

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
        """Check which resamples hold both classes, [B]."""
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
    """Compute sensitivity_at_specificity from sorted counts; each call gives a point of the ROC curve."""
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
    """Compute the mean over the classes of the share of their rows predicted right; undefined if a class has no rows.

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
    """Compute Cohen's kappa with quadratic weights: an error of two grades counts four times an error of one grade.

        1 - sum_ij (i - j)^2 O_ij / sum_ij (i - j)^2 E_ij,   E_ij = sum_j O_ij * sum_i O_ij / sum O

    Source: Cohen 1968, "Weighted kappa". Undefined where all rows and predictions have the same grade. Arguments as
    ``balanced_accuracy``.
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
