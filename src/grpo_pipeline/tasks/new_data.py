"""Describe data of a user's own: a guess that a task makes from a folder, for an environment in ``conf/``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from grpo_pipeline.tasks.csv_records import csv_records
from grpo_pipeline.tasks.splits import SPLIT_OF, split_name_in
from grpo_pipeline.tasks.text_lines import TextFile

TABLES = (".csv", ".tsv")
SPLIT = "split"
STRAY = re.compile("[\udc80-\udcff]")  # a byte that is no UTF-8, as csv_records keeps it


class UnclearDataError(ValueError):
    """A guess would be a gamble; the text says what to name."""


@dataclass(frozen=True)
class Hints:
    """The user's own words about the data.

    Attributes:
        table: name of the file below the folder that has a row per example; "" finds it.
        columns: key of the task's columns -> name of the column.
        positive: values of the label that count as positive.
    """

    table: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    positive: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """A description of a folder.

    Attributes:
        task: task that can read it.
        globals: name -> value of ``globals.yml``, beside the task's folder and root.
        parameters: text of the parameters file, with a comment at every guess.
        notes: sentences for the user: what was found, and what to check.
        files: name -> content of further files of the environment; ``globals`` may name one as ``{here}/<name>``.
    """

    task: str
    globals: Mapping[str, str]
    parameters: str
    notes: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        name: of the file, below the folder; "" of several that were joined.
        columns: name -> cells, as text without outer blanks.
    """

    name: str
    columns: Mapping[str, Sequence[str]]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return max(map(len, self.columns.values()), default=0)

    def values(self, column: str) -> list[str]:
        """List the different cells of a column that are not empty, sorted."""
        return sorted({cell for cell in self.columns[column] if cell})


def find_table(folder: Path, hints: Hints) -> Table | None:
    """Read the table of a folder: the one that is named, or the only one; None where there is none.

    Several that are named after splits, as ``train.csv`` and ``test.csv``, are one without a name, which has a column ``split``.

    Raises:
        UnclearDataError: if there are several, the named one is missing, or it is no table with a header.
    """
    found = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in TABLES and p.is_file())
    if hints.table and hints.table.lower().endswith(TABLES):
        if not (folder / hints.table).is_file():
            raise UnclearDataError(
                f"--table must be a file below {folder}, got {hints.table!r}; it has {found}"
            )
        found = [hints.table]
    if not found or (hints.table and hints.table not in found):
        return None
    if len(found) == 1:
        return read_table(folder, found[0])
    if (joined := _join_splits(folder, found)) is not None:
        return joined
    raise UnclearDataError(
        f"{folder} must have one CSV file, got {', '.join(found)}; name the one with a row per example: --table {found[0]}"
    )


def _join_splits(folder: Path, names: Sequence[str]) -> Table | None:
    """Join tables of the same columns that are named after splits; None where they are not."""
    splits = [SPLIT_OF[word] for word in map(split_name_in, names) if word is not None]
    if "train" not in splits or len({*splits}) < len(names):
        return None
    tables = [read_table(folder, name) for name in names]
    if len({tuple(table.columns) for table in tables}) > 1 or SPLIT in tables[0].columns:
        return None
    columns = {
        c: [cell for table in tables for cell in table.columns[c]] for c in tables[0].columns
    }
    told = [split for split, table in zip(splits, tables, strict=True) for _ in range(table.rows)]
    return Table("", {**columns, SPLIT: told})


def read_table(folder: Path, name: str) -> Table:
    """Read a CSV file with a header; raises ``UnclearDataError`` if it is none, or is not UTF-8."""
    try:
        rows = [
            row for _, row in csv_records(TextFile(str(folder / name)), [], section="the table")
        ]
    except ValueError as error:
        raise UnclearDataError(str(error)) from error
    if not rows:
        raise UnclearDataError(
            f"{folder / name} must have a header and rows, got none; write it again"
        )
    columns = [column for column in rows[0] if column]
    cells = (cell for row in rows for cell in row.values() if isinstance(cell, str))
    if strange := next((cell for cell in cells if STRAY.search(cell)), None):
        shown = strange.encode(errors="surrogateescape")
        raise UnclearDataError(
            f"{folder / name} must be UTF-8 text, got the bytes {shown!r}; save it again as UTF-8"
        )
    return Table(name, {c: [(row.get(c) or "").strip() for row in rows] for c in columns})


def column_of(
    table: Mapping[str, object] | Sequence[str], key: str, names: Sequence[str], hints: Hints
) -> str | None:
    """Choose the column of a key: the one that the user names, or the first whose name is one of ``names``.

    Args:
        table: names of the columns.
        key: key of the task's columns.
        names: usual names, in lower case; they are compared without case and signs.
        hints: the user's.

    Raises:
        UnclearDataError: if the user names a column that is not there.
    """
    columns = list(table)
    if key in hints.columns:
        if hints.columns[key] not in columns:
            raise UnclearDataError(
                f"--column {key} must name a column, got {hints.columns[key]!r}; there are {', '.join(columns)}"
            )
        return hints.columns[key]
    plain = {column: "".join(c for c in column.lower() if c.isalnum()) for column in columns}
    wanted = ["".join(c for c in name if c.isalnum()) for name in names]
    return next((c for name in wanted for c in columns if plain[c] == name), None)


def line(text: str, comment: str = "") -> str:
    """Write a line of YAML with a comment behind it."""
    return f"{text:<33} # {comment}" if comment else text


def flow(value: Any) -> str:
    """Write a value of YAML on one line; texts that YAML would read as something else are in quotes."""
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
    )
