"""Compute the BLEU of replies, by sacrebleu on normalised words.

The reward takes that of each reply, the report that of all of them.

Both come from the same counts per reply. Counts add up, so that the corpus BLEU of any resample of rows is a sum.
"""

from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grpo_pipeline.rewards.functions import prepared_by
from grpo_pipeline.tasks.dialogue.scores.normalisation import normalise
from grpo_pipeline.tasks.dialogue.scores.reference_pairs import Answers, Replies, check_pairs
from grpo_pipeline.tasks.extras import library

ORDERS = 4
BLEU_COLUMNS = (
    "reply_words",
    "answer_words",
    *(f"{kind}_{n}" for kind in ("matched", "all") for n in range(1, ORDERS + 1)),
)


def bleu_counts(
    replies: Replies, answers: Answers, *, words: Literal["normalised", "13a"] = "normalised"
) -> NDArray[np.int64]:
    """Count the matches and lengths behind BLEU, per reply.

    Source: Papineni et al., BLEU, ACL 2002, section 2, with the counts of sacrebleu. N-grams are clipped by the answer that has
    most of them; the length is that of the answer closest to the reply's.

    Args:
        replies: N texts.
        answers: N lists of at least one text.
        words: those of ``normalise``, or sacrebleu's own, in which case and signs count.

    Returns:
        int64 [N, 10], columns ``BLEU_COLUMNS``.

    Raises:
        ValueError: as ``check_pairs``.
    """
    check_pairs(replies, answers)
    tokenize, written = ("13a", str) if words == "13a" else ("none", normalise)
    counter = _sacrebleu().BLEU(tokenize=tokenize, smooth_method="none", effective_order=True)
    rows = np.zeros((len(replies), len(BLEU_COLUMNS)), dtype=np.int64)
    for row, (reply, texts) in enumerate(zip(replies, answers, strict=True)):
        found = counter.sentence_score(written(reply), [written(text) for text in texts])
        rows[row] = [found.sys_len, found.ref_len, *found.counts, *found.totals]
    return rows


def sentence_bleu(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the BLEU of each reply, over the orders that it is long enough for.

        BLEU = min(1, exp(1 - r / c)) * (prod over n <= min(4, c) of p_n) ** (1 / min(4, c))

    c words in the reply, r in the closest answer, p_n the share of its n-grams that match. An order without a match would make
    the product 0; sacrebleu's ``exp`` halves once more at each such order (Chen and Cherry, WMT 2014, method 3). A reply without
    a matching word scores 0.

    Args:
        counts: [N, 10] of ``bleu_counts``.

    Returns:
        [N], in [0, 1].
    """
    return np.asarray([_bleu(row, effective=True) for row in counts], dtype=np.float64)


def corpus_bleu(counts: NDArray[np.int64]) -> float:
    """Compute the BLEU of all replies together, from their summed counts.

    All four orders count, smoothed by ``exp`` as sacrebleu does by default. Its signature is
    ``case:mixed|eff:no|tok:none|smooth:exp`` on text that was normalised before.

    Args:
        counts: [N, 10] of ``bleu_counts``, any selection of rows, with repeats.

    Returns:
        In [0, 1]; NaN for no rows.
    """
    return _bleu(counts.sum(axis=0), effective=False) if len(counts) else float("nan")


@cache
def _sacrebleu() -> Any:
    return library("sacrebleu.metrics.bleu", extra="dialogue")


@prepared_by(_sacrebleu)
def bleu(replies: Replies, answers: Answers) -> NDArray[np.float64]:
    """Compute the BLEU of each reply, [N] in [0, 1]: the reward component of that name (``sentence_bleu``)."""
    return sentence_bleu(bleu_counts(replies, answers))


def _bleu(counts: NDArray[np.int64], *, effective: bool) -> float:
    reply_words, answer_words, *rest = counts.tolist()
    score = _sacrebleu().BLEU.compute_bleu(
        rest[:ORDERS],
        rest[ORDERS:],
        reply_words,
        answer_words,
        smooth_method="exp",
        effective_order=effective,
    )
    # exp(log(...)) may exceed 1 by rounding.
    return min(1.0, float(score.score) / 100)
