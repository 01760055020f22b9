"""Score replies that are an answer word by word."""

import numpy as np
from numpy.typing import NDArray

from grpo_pipeline.tasks.dialogue.scores.normalisation import normalise
from grpo_pipeline.tasks.dialogue.scores.reference_pairs import Answers, Replies, check_pairs


def exact_match(replies: Replies, answers: Answers) -> NDArray[np.float64]:
    """Score every reply 1 if its words are those of one of its answers in their order, else 0.

    Words are those of ``normalise``, as in F1: "-5" and "5" are one word, which ``number`` keeps apart. A reply without a word
    scores 0. Source: ``exact_match_score`` of the SQuAD 1.1 evaluation, arXiv 1606.05250, section 4.

    Returns:
        [N], 0 or 1.

    Raises:
        ValueError: as ``check_pairs``.
    """
    check_pairs(replies, answers)
    found = [
        bool(normalise(reply)) and normalise(reply) in {normalise(text) for text in texts}
        for reply, texts in zip(replies, answers, strict=True)
    ]
    return np.asarray(found, dtype=np.float64)
