"""Say in a later step where the reading has refused rows: that comes first."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def describe_refusals(refused: "pd.DataFrame", *, n_left: int, where: str) -> str:
    """Return how many rows were refused and why the first was, "" where none was.

    Args:
        refused: of a quarantine, with ``reason``.
        n_left: rows that are sound.
        where: how a message names the first one.
    """
    if not len(refused):
        return ""
    return f"{len(refused)} of {len(refused) + n_left} rows were refused, the first at {where}: {refused['reason'].iloc[0]}"


@contextmanager
def after_refusals(told: str) -> Iterator[None]:
    """Put what the reading has refused before the error of a step that goes on with the rest; "" is nothing.

    Raises:
        ValueError: the same, in one sentence.
    """
    try:
        yield
    except ValueError as error:
        if not told:
            raise
        raise ValueError(f"{told}. With the others: {error}") from error
