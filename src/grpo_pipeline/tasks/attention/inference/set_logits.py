"""Combine the logits of the point sets of a core."""

from typing import Literal

import numpy as np


def mean_logits(logits: np.ndarray) -> np.ndarray:
    """Return the logit of the mean probability of point sets: [..., E] -> [...]."""
    sets = np.moveaxis(np.asarray(logits, np.float64), -1, 0)
    combined: np.ndarray = combine_logits(sets, np.zeros(len(sets), np.int64), "mean")[0]
    return combined


def combine_logits(
    logits: np.ndarray, codes: np.ndarray, how: Literal["mean", "max"]
) -> np.ndarray:
    """Return the logit of every group of rows, whose probability is the mean or the highest of theirs: [n, ...] -> [g, ...].

        mean: log sum_i sigmoid(x_i) - log sum_i sigmoid(-x_i)

    so that nothing is rounded to a probability of 1 on the way.

    Args:
        logits: of each row, in any order.
        codes: group of each row, 0 to g - 1, int [n]; every group has a row.
        how: the rule.
    """
    shape = (int(codes.max(initial=-1)) + 1, *logits.shape[1:])
    if how == "max":
        highest = np.full(shape, -np.inf)
        np.maximum.at(highest, codes, logits)
        return highest
    positive, negative = (np.full(shape, -np.inf) for _ in range(2))
    np.logaddexp.at(positive, codes, -np.logaddexp(0, -logits))
    np.logaddexp.at(negative, codes, -np.logaddexp(0, logits))
    return positive - negative
