"""Compute ROUGE-L as the Python package rouge 1.0.1 does, whose values papers report beside our own definition.

How it differs from ``rouge.rouge``: case and signs count, a full stop ends a sentence, and of repeated words only one counts. The
package walks back through a subsequence by recursion, and fails on long texts; here it is a loop.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grpo_pipeline.tasks.dialogue.scores.reference_pairs import Answers, Replies, check_pairs


def rouge_l_rouge101(replies: Replies, answers: Answers) -> NDArray[np.float64]:
    """Score every reply by the F-measure against its best answer.

        F = 2 P R / (P + R + 1e-8),  P = u / different words of the reply,  R = u / different words of the answer

    u counts the different words of the longest common subsequences of every sentence of the answer with every sentence of the
    reply. Source: Lin, ROUGE, ACL 2004 workshop, section 3.2, as that package reads it. A text of full stops alone scores 0.

    Returns:
        [N], in [0, 1].

    Raises:
        ValueError: as ``check_pairs``.
    """
    check_pairs(replies, answers)
    scores = [
        max(_f_measure(sentences_of(answer), sentences_of(reply)) for answer in texts)
        for reply, texts in zip(replies, answers, strict=True)
    ]
    return np.asarray(scores, dtype=np.float64)


def sentences_of(text: str) -> list[list[str]]:
    """Split a text into sentences of words; one of blanks alone has a single empty word, as in the package."""
    return [part.split() or [""] for part in text.split(".") if part]


def common_words(answer: Sequence[str], reply: Sequence[str]) -> set[str]:
    """Find the words of the longest common subsequence; of several, the one whose words come last in the answer."""
    lengths = [[0] * (len(reply) + 1) for _ in range(len(answer) + 1)]
    for i, word in enumerate(answer):
        for j, other in enumerate(reply):
            longer = max(lengths[i][j + 1], lengths[i + 1][j])
            lengths[i + 1][j + 1] = lengths[i][j] + 1 if word == other else longer
    found: set[str] = set()
    i, j = len(answer), len(reply)
    while i and j:
        if answer[i - 1] == reply[j - 1]:
            found.add(answer[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found


def _f_measure(answer: list[list[str]], reply: list[list[str]]) -> float:
    if not answer or not reply:
        return 0.0
    common = len({word for one in answer for other in reply for word in common_words(one, other)})
    precision, recall = (
        common / len({word for sentence in text for word in sentence}) for text in (reply, answer)
    )
    return 2 * precision * recall / (precision + recall + 1e-8)
