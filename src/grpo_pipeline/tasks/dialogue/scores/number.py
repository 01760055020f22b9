"""Score replies whose last number is the right one."""

import re
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from grpo_pipeline.core.objective.part import Weighed
from grpo_pipeline.tasks.dialogue.scores.reference_pairs import Answers, Replies, check_pairs

# A minus behind a letter, digit or bracket subtracts. Commas stand between groups of three digits.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]])[-\u2212])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
)


class NumberReward(Weighed):
    """The last number of a reply.

    Attributes:
        tolerance: largest distance from the answer's number that counts as equal.
    """

    tolerance: float = Field(default=0.0, ge=0)


def number(replies: Replies, answers: Answers, *, tolerance: float) -> NDArray[np.float64]:
    """Score every reply 1 if its last number is the last number of one of its answers, else 0.

        1 if |last(reply) - last(answer)| <= tolerance for some answer

    Of an answer of GSM8K ("… #### 42", Cobbe et al., arXiv 2110.14168) that is the number behind the marks. Numbers are decimal,
    with every digit: "1,234.50" is 1234.5. Exponents, fractions and number words are not read.

    Returns:
        [N], 0 or 1; 0 for a reply without a number.

    Raises:
        ValueError: as ``check_pairs``.
    """
    check_pairs(replies, answers)
    allowed = Decimal(repr(tolerance))
    found = [
        _is_near(last_number(reply), [last_number(text) for text in texts], allowed)
        for reply, texts in zip(replies, answers, strict=True)
    ]
    return np.asarray(found, dtype=np.float64)


def last_number(text: str) -> Decimal | None:
    """Read the last number of a text; None without one."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "").replace("\u2212", "-")) if found else None


def _is_near(value: Decimal | None, right: list[Decimal | None], allowed: Decimal) -> bool:
    return value is not None and any(
        one is not None and (value == one or abs(value - one) <= allowed) for one in right
    )
