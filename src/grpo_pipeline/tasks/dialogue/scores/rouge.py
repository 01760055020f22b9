"""Compute ROUGE-1, ROUGE-2 and ROUGE-L of replies, by the package rouge-score on normalised words."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_pipeline.rewards.functions import prepared_by
from grpo_pipeline.tasks.dialogue.scores.normalisation import words
from grpo_pipeline.tasks.dialogue.scores.reference_pairs import Answers, Replies, check_pairs
from grpo_pipeline.tasks.extras import library

ROUGE_NAMES = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}


class NormalisedWords:
    """Tokenizer for rouge-score, whose own tokenizer drops every letter outside a-z and keeps articles."""

    def tokenize(self, text: str) -> list[str]:
        """Split the normalised text into words."""
        return words(text)


def rouge(
    replies: Replies, answers: Answers, *, names: Sequence[str] = tuple(ROUGE_NAMES)
) -> dict[str, NDArray[np.float64]]:
    """Score every reply by the F-measure of the named kinds of ROUGE, each against its best answer.

        rouge_n: 2 c / (n-grams of the reply + n-grams of the answer),  c n-grams in common with repeats
        rouge_l: the same with c the longest common subsequence of words

    Source: Lin, ROUGE, ACL 2004 workshop, sections 2 and 3, with beta = 1; no stemming. A text without words scores 0.

    Args:
        replies: N texts.
        answers: N lists of at least one text.
        names: any of ``ROUGE_NAMES``.

    Returns:
        name -> [N], in [0, 1].

    Raises:
        ValueError: as ``check_pairs``, or for an unknown name.
    """
    check_pairs(replies, answers)
    unknown = sorted(set(names) - set(ROUGE_NAMES))
    if unknown:
        raise ValueError(
            f"kinds of ROUGE must be among {sorted(ROUGE_NAMES)}, got {unknown}; correct the names"
        )
    scorer = _rouge_score().RougeScorer(
        [ROUGE_NAMES[name] for name in names], tokenizer=NormalisedWords()
    )
    rows = [
        scorer.score_multi(list(texts), reply)
        for reply, texts in zip(replies, answers, strict=True)
    ]
    return {
        name: np.asarray([row[ROUGE_NAMES[name]].fmeasure for row in rows], dtype=np.float64)
        for name in names
    }


@cache
def _rouge_score() -> Any:
    return library("rouge_score.rouge_scorer", extra="dialogue")


@prepared_by(_rouge_score)
def rouge_l(replies: Replies, answers: Answers) -> NDArray[np.float64]:
    """Compute ROUGE-L alone, [N] in [0, 1]: the reward component of that name."""
    return rouge(replies, answers, names=("rouge_l",))["rouge_l"]
