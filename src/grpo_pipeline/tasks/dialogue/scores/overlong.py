"""Punish long replies before they are cut."""

from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Weighed
from grpo_pipeline.tasks.dialogue.scores.diversity import length
from grpo_pipeline.tasks.dialogue.scores.reference_pairs import Answers, Replies


class LengthReward(Weighed):
    """A limit of words.

    Attributes:
        free: words up to which nothing is lost.
        limit: words from which the value is -1.
    """

    free: int = Field(ge=0)
    limit: int = Field(ge=1)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.free >= self.limit:
            raise ValueError(
                f"free must be below limit, got {self.free} and {self.limit}; allow fewer words"
            )
        return self


def overlong(replies: Replies, answers: Answers, *, free: int, limit: int) -> NDArray[np.float64]:
    """Score every reply 0 up to ``free`` words, falling linearly to -1 at ``limit`` words and beyond; [N].

        value = -clip((words - free) / (limit - free), 0, 1)

    Source: DAPO, arXiv 2503.14476, equation 13, with words (``diversity.length``) in place of tokens. The answers are not read.
    """
    share = (length(replies) - free) / (limit - free)
    return np.asarray(-np.clip(share, 0.0, 1.0) + 0.0, dtype=np.float64)
