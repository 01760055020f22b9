"""Compute distinct-n with an unbiased interval.

A resample of clusters holds some of them twice. A repeated reply adds n-grams but no different ones. So distinct-n of a resample
is always too low, and its percentile interval lies below the value of the sample. Distinct-n is therefore linearised around the
sample by the jackknife, from the effect of leaving out each cluster. For a mean, that is exactly the bootstrap
(``linear_resampling.linear_resamples``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo_pipeline.statistics.linear_resampling import linear_resamples
from grpo_pipeline.tasks.dialogue.evaluation.weighted_bleu import Floats
from grpo_pipeline.tasks.dialogue.scores.normalisation import words


@dataclass(frozen=True)
class GramCounts:
    """N-grams of replies by cluster.

    Attributes:
        different: number of different n-grams of all clusters.
        own: n-grams that no other cluster has, float64 [C].
        total: all n-grams, float64 [C].
    """

    different: int
    own: Floats
    total: Floats

    @property
    def value(self) -> float:
        """Distinct-n of the sample; NaN without an n-gram."""
        return float(_ratio(np.array(float(self.different)), self.total.sum()))

    @property
    def without_each(self) -> Floats:
        """Compute distinct-n of the sample without each cluster, [C]; NaN if no n-gram is left."""
        return _ratio(self.different - self.own, self.total.sum() - self.total)


def weighted_distinct(
    replies: Sequence[str], clusters: NDArray[np.int64], weights: Floats, *, n: int
) -> Floats:
    """Compute distinct-n in resamples of clusters, linearised by the jackknife, [B].

        D[b] = D - (C - 1) / C * sum_c (w[b, c] - 1) * D_(-c),   cut to [0, 1]

    D is distinct-n of all replies, D_(-c) that of the replies of all clusters but c. Weights of 1 give D itself. D[b] is centred
    on D. Its variance is the jackknife's, which is on average not too small (Efron and Stein, Annals of Statistics 9, 1981, pages
    586-596). The estimand is the expected distinct-n of as many replies of as many clusters: distinct-n falls with the number of
    replies. If all n-grams belong to a single cluster, the resamples are undefined.

    Args:
        replies: [n], texts; n-grams of their normalised words, never across two replies.
        clusters: [n], number of each reply's cluster, 0 .. C - 1, none empty.
        weights: [B, n], how often a resample holds each row; equal for the rows of a cluster.
        n: words in an n-gram.

    Raises:
        ValueError: if rows of a cluster have different weights.
    """
    _, first_row = np.unique(clusters, return_index=True)
    of_clusters = weights[:, first_row]  # [B, C]
    if not np.array_equal(of_clusters[:, clusters], weights):
        raise ValueError(
            "the weights of one persona's rows must be equal, got different ones; resample whole personas"
        )
    counts = count_grams(replies, clusters, n=n)
    return linear_resamples(counts.value, counts.without_each, of_clusters)


def count_grams(replies: Sequence[str], clusters: NDArray[np.int64], *, n: int) -> GramCounts:
    """Count the n-grams of each cluster, and those that occur in it alone; arguments as ``weighted_distinct``."""
    texts = [words(reply) for reply in replies]
    places = [max(0, len(text) - n + 1) for text in texts]
    grams = {
        gram: i
        for i, gram in enumerate(
            sorted({tuple(t[i : i + n]) for t in texts for i in range(len(t) - n + 1)})
        )
    }
    # Every n-gram of every reply, [places]: its number, and the cluster that wrote it.
    gram = np.array(
        [grams[tuple(t[i : i + n])] for t in texts for i in range(len(t) - n + 1)], dtype=np.int64
    )
    cluster = np.repeat(clusters, places)
    size = int(clusters.max()) + 1
    # Each cluster counts once for an n-gram; an n-gram in a single cluster is that cluster's own.
    pairs = np.unique(cluster * max(1, len(grams)) + gram)
    holder, held = np.divmod(pairs, max(1, len(grams)))
    is_own = np.bincount(held, minlength=len(grams))[held] == 1
    own = np.bincount(holder[is_own], minlength=size)  # [C]
    return GramCounts(
        len(grams), own.astype(np.float64), np.bincount(cluster, minlength=size).astype(np.float64)
    )


def _ratio(part: Floats, whole: Floats) -> Floats:
    quotient = np.full(np.broadcast_shapes(np.shape(part), np.shape(whole)), np.nan)
    np.divide(part, whole, out=quotient, where=np.asarray(whole) > 0)
    return quotient
