"""Mention refused rows in the error of a later step, because they may be its cause."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def describe_refusals(refused: "pd.DataFrame", *, n_left: int, where: str) -> str:
    """Write how many rows were refused and why the first was; "" without refused rows.

    Args:
        refused: rows of a quarantine, with ``reason``.
        n_left: number of valid rows.
        where: place of the first refused row, for the message.
    """
    if not len(refused):
        return ""
    return f"{len(refused)} of {len(refused) + n_left} rows were refused, the first at {where}: {refused['reason'].iloc[0]}"


@contextmanager
def after_refusals(told: str) -> Iterator[None]:
    """Put the sentence about refused rows in front of the error of a step that uses the valid rows; "" adds nothing.

    Raises:
        ValueError: the step's error with both sentences.
    """
    try:
        yield
    except ValueError as error:
        if not told:
            raise
        raise ValueError(f"{told}. With the others: {error}") from error
