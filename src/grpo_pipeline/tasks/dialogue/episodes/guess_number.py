"""Guess a number: the smallest conversation in which a reply must use what it was told."""

from collections.abc import Mapping
from typing import Any

FOUND = "yes"


class GuessNumber:
    """An environment that says whether its number is more or less than the one guessed; 1 for the right guess, else 0.

    A reply that is no number is told so. The number is the column ``number`` of the row.
    """

    def reset(self, row: Mapping[str, Any]) -> None:
        """Begin with a row."""
        self._number = int(row["number"])

    def step(self, reply: str) -> tuple[str, float, bool]:
        """Answer a guess."""
        if not reply.strip().isdecimal():
            return "number", 0.0, False
        guess = int(reply)
        if guess == self._number:
            return FOUND, 1.0, True
        return ("more" if self._number > guess else "less"), 0.0, False
