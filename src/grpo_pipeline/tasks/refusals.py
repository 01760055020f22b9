"""Say of refused rows how many there are and why the first was refused, as a warning, or as the error that ends a run."""

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


def describe_failure(
    where: str, reason: str, *, n_refused: int, n_rows: int, n_left: int, section: str
) -> str:
    """Write why refused rows end the run: the first of them, how many there are, and the remedy.

    Args:
        where: place of the first refused row.
        reason: why it was refused.
        n_refused: number of refused rows.
        n_rows: number of all rows.
        n_left: number of valid rows.
        section: section of the parameters with ``on_bad_row``.
    """
    if n_refused == n_rows or not n_left:
        return f"{where}: {reason} (all rows are bad, {n_rows} of {n_rows}, there is nothing to go on with)"
    remedy = f"correct them, or set {section}.on_bad_row: quarantine to go on without them"
    return f"{where}: {reason} ({n_refused} of {n_rows} rows are bad: {remedy})"


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
