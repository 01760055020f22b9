"""Measure the word overlap of a reply with its best reference answer: the F1 of the reward and of every report."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from grpo_pipeline.tasks.dialogue.scores.normalisation import words
from grpo_pipeline.tasks.dialogue.scores.reference_pairs import Answers, Replies, check_pairs


def f1(replies: Replies, answers: Answers) -> NDArray[np.float64]:
    """Score every reply against the answer that it overlaps most.

        F1 = max over answers a of 2 c / (words in the reply + words in a),   c = number of words in common, with repeats

    Words are those of ``normalise``. Without a common word the score is 0, also between two texts without words: an empty reply
    gets no reward. Source: ``f1_score`` of the SQuAD 1.1 evaluation, arXiv 1606.05250, section 4 (2 c / (m + n) is its 2 P R / (P
    + R)).

    Returns:
        [N], in [0, 1].

    Raises:
        ValueError: as ``check_pairs``.
    """
    check_pairs(replies, answers)
    counts = [Counter(words(reply)) for reply in replies]
    scores = [
        max(_overlap(reply, Counter(words(answer))) for answer in texts)
        for reply, texts in zip(counts, answers, strict=True)
    ]
    return np.asarray(scores, dtype=np.float64)


def _overlap(reply: Counter[str], answer: Counter[str]) -> float:
    common = (reply & answer).total()
    return 2 * common / (reply.total() + answer.total()) if common else 0.0
