"""Punish replies that repeat themselves."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from grpo_pipeline.core.objective.part import Weighed
from grpo_pipeline.tasks.dialogue.scores.normalisation import words
from grpo_pipeline.tasks.dialogue.scores.reference_pairs import Answers, Replies


class RepetitionReward(Weighed):
    """Repeated sequences of words.

    Attributes:
        n: words of a sequence.
    """

    n: int = Field(default=3, ge=1)


def repetition(replies: Replies, answers: Answers, *, n: int) -> NDArray[np.float64]:
    """Score every reply by minus the share of its n-grams that were there before, [N] in (-1, 0].

        value = different n-grams / n-grams - 1

    Words are those of ``normalise``; a reply of fewer than n words scores 0. The answers are not read.
    """
    return np.asarray([_different(words(reply), n) - 1.0 for reply in replies], dtype=np.float64)


def _different(text: list[str], n: int) -> float:
    grams = [tuple(text[start : start + n]) for start in range(len(text) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0
