"""Compute the corpus BLEU of all resamples at once: its counts are additive, so a resample is a weighted sum of rows."""

import numpy as np
from numpy.typing import NDArray

from grpo_pipeline.tasks.dialogue.scores.bleu import ORDERS

Floats = NDArray[np.float64]


def weighted_corpus_bleu(counts: Floats, weights: Floats) -> Floats:
    """Return the corpus BLEU of each resample, [B] in [0, 1].

        BLEU = min(1, exp(1 - r / c)) * (p_1 p_2 p_3 p_4) ** (1 / 4),   p_n = m_n / a_n

    with sums over the rows of the resample: c words of the replies, r of the closest answers, a_n n-grams, m_n of them matched.
    An order without a match counts 1 / (2^k a_n), k the number of such orders so far (``exp``). Nothing matched at all, or no
    reply of four words: 0. Equals ``bleu.corpus_bleu`` of a table that repeats its rows; undefined in a resample without a row.

    Args:
        counts: [n, 10], columns ``BLEU_COLUMNS``.
        weights: [B, n], how often a resample holds each row.
    """
    sums = weights @ counts  # [B, 10]
    reply, answer, matched, total = (
        sums[:, 0],
        sums[:, 1],
        sums[:, 2 : 2 + ORDERS],
        sums[:, 2 + ORDERS :],
    )
    is_missed = matched == 0
    halvings = np.cumsum(is_missed, axis=1)  # k: [B, 4]
    is_defined = (total > 0).all(axis=1) & ~is_missed.all(axis=1)
    # p_n: [B, 4]; where nothing can be counted the value is replaced by 0 below.
    precision = np.where(is_missed, 0.5**halvings, matched) / np.where(total > 0, total, 1.0)
    brevity = np.exp(np.minimum(0.0, 1 - answer / np.where(reply > 0, reply, 1.0)))  # [B]
    value = np.minimum(1.0, brevity * np.exp(np.log(precision).mean(axis=1)))  # [B]
    return np.where(weights.sum(axis=1) > 0, np.where(is_defined, value, 0.0), np.nan)
