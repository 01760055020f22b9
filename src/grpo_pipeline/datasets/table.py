"""Store a table as CSV whose cells no spreadsheet runs: ``=HYPERLINK(…)`` is written with an apostrophe before it.

Source of the rule: OWASP, "CSV Injection": a cell is run if it begins with = + - @, a tab or a carriage return.
"""

import csv
import re
from collections.abc import Callable
from typing import Any, cast

import pandas as pd
from kedro.io.core import get_filepath_str
from kedro_datasets.pandas import CSVDataset

MARK = "'"
# Apostrophes before such a sign are escaped as well, so that reading removes only what writing has added.
RUN = re.compile(r"'*[=+\-@\t\r]")
MARKED = re.compile(r"'+[=+\-@\t\r]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class TableDataset(CSVDataset):  # type: ignore[misc]
    """A ``pandas.CSVDataset`` that escapes text on saving and restores it on loading; numbers stay numbers.

    Example:
        ``{type: grpo_pipeline.datasets.table.TableDataset, filepath: …/quarantine.csv, save_args: {index: false}}``
    """

    def load(self) -> pd.DataFrame:
        """Read the table; apostrophes of ``save`` are removed."""
        # Kedro wraps the methods of every class; this calls the parent's unwrapped method.
        return restored(cast(Any, CSVDataset.load).__wrapped__(self))

    def save(self, data: pd.DataFrame) -> None:
        """Write the table, escaped."""
        table = escaped(data)
        # pandas does not quote a lone carriage return, which then reads as the end of the row.
        texts = (table.iloc[:, place] for place in _texts(table))
        quoting = (
            {"quoting": csv.QUOTE_NONNUMERIC}
            if any("\r" in value for column in texts for value in column if isinstance(value, str))
            else {}
        )
        with self._fs.open(
            get_filepath_str(self._get_save_path(), self._protocol), **self._fs_open_args_save
        ) as file:
            table.to_csv(file, **self._save_args | quoting)
        self._invalidate_cache()


def escaped(table: pd.DataFrame) -> pd.DataFrame:
    """Add an apostrophe before every text, and every column name, that a spreadsheet would run."""
    return _each_text(
        table, lambda text: MARK + text if RUN.match(text) and not NUMBER.fullmatch(text) else text
    )


def restored(table: pd.DataFrame) -> pd.DataFrame:
    """Remove the apostrophes of ``escaped``."""
    return _each_text(table, lambda text: text[len(MARK) :] if MARKED.match(text) else text)


def _each_text(table: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    def changed(value: Any) -> Any:
        return change(value) if isinstance(value, str) else value

    found: Any = table.copy(deep=False)
    for place in _texts(table):
        found.isetitem(place, table.iloc[:, place].map(changed))
    return cast(pd.DataFrame, found.set_axis([changed(name) for name in table.columns], axis=1))


def _texts(table: pd.DataFrame) -> list[int]:
    """List the places of the columns that may hold text."""
    return [
        place for place, kind in enumerate(table.dtypes) if not pd.api.types.is_numeric_dtype(kind)
    ]
