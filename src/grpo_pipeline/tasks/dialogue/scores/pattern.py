"""Score replies that have a form, given by a regular expression."""

import re
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from grpo_pipeline.core.objective.part import Weighed
from grpo_pipeline.tasks.dialogue.scores.reference_pairs import Answers, Replies


class PatternReward(Weighed):
    """A form of replies.

    Attributes:
        regex: regular expression as of Python's ``re``; ``.`` is any character but a line break.
        part: ``full`` asks that the whole reply matches; ``search`` that some part of it does.
    """

    regex: str
    part: Literal["full", "search"] = "full"

    @model_validator(mode="after")
    def _check_regex(self) -> Self:
        try:
            re.compile(self.regex)
        except re.error as error:
            raise ValueError(
                f"regex must be a regular expression, got {self.regex!r} ({error}); correct it"
            ) from error
        return self


def pattern(
    replies: Replies, answers: Answers, *, regex: str, part: Literal["full", "search"]
) -> NDArray[np.float64]:
    """Score every reply 1 if the expression matches all of it (``full``) or some of it (``search``), else 0; [N].

    The answers are not read. Blanks around a reply do not count.
    """
    compiled = re.compile(regex)
    matches = compiled.fullmatch if part == "full" else compiled.search
    return np.asarray([matches(reply.strip()) is not None for reply in replies], dtype=np.float64)
