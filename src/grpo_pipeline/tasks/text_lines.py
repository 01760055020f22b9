"""Read a raw text file line by line, for every task that reads text."""

import csv
import hashlib
import io
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextFile:
    """A file as it is, read as a stream.

    Attributes:
        path: of the file, and for messages.
        content: its bytes where they are in memory; None reads the file at ``path`` each time that it is asked for.
    """

    path: str
    content: bytes | None = None

    def open(self) -> io.BytesIO | io.BufferedReader:
        """Return the bytes as a stream."""
        return io.BytesIO(self.content) if self.content is not None else Path(self.path).open("rb")

    def digest(self) -> str:
        """Return the SHA-256 of the bytes, hexadecimal."""
        with self.open() as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


HEAD = 65_536
"""Bytes at the beginning of a file that show its encoding and how its lines end."""
OTHER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x00\x00\xfe\xff": "UTF-32"}
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def check_encoding(head: bytes, path: str) -> None:
    """Refuse a file whose first bytes show another encoding than UTF-8, or lines without line feeds.

    Raises:
        ValueError: naming what was found.
    """
    other = next((name for mark, name in OTHER_MARKS.items() if head.startswith(mark)), None)
    if other is not None or b"\0" in head:
        got = other or "bytes of 0, as UTF-16 or a binary file has"
        raise ValueError(f"{path} must be UTF-8 text, got {got}; save it again as UTF-8")
    if b"\r" in head and b"\n" not in head:
        raise ValueError(
            f"{path} must have lines that end with a line feed, got carriage returns alone; convert the line ends"
        )


def check_table(head: bytes, path: str) -> None:
    """Refuse a table of another encoding, or whose first line is divided by something else than commas.

    Raises:
        ValueError: naming what was found.
    """
    lines = head.removeprefix(BOM).replace(b"\r", b"\n")  # the table's reader knows all line ends
    check_encoding(lines, path)
    header = lines.decode(errors="replace").partition("\n")[0]
    if header.casefold().startswith("sep="):
        raise ValueError(
            f"{path} must begin with the names of its columns, got {header.strip()!r}; delete that line, and save the table "
            "with commas"
        )
    found = [sign for sign in SEPARATORS if sign in header and "," not in header]
    if found:
        raise ValueError(
            f"{path} must have commas between its columns, got {SEPARATORS[found[0]]} in its first line; save it with commas, "
            "and with points in numbers"
        )


def composed(text: str) -> str:
    """Return a text in the one Unicode form in which names and texts are compared (NFC): one letter for u and its dots."""
    return unicodedata.normalize("NFC", text)


def numbered_lines(file: TextFile) -> Iterator[tuple[int, bytes]]:
    """Yield (line, bytes) of the lines that are not blank, counted from 1; a byte order mark is no part of the first.

    Raises:
        ValueError: for a file of another encoding, or without line feeds.
    """
    with file.open() as content:
        check_encoding(content.read(HEAD), file.path)
        content.seek(0)
        for number, line in enumerate(content, start=1):
            text = (line.removeprefix(BOM) if number == 1 else line).removesuffix(b"\n")
            if text.strip():
                yield number, text


# The rows of a CSV file with quoted line breaks, and the lines where they begin.


def csv_records(
    file: TextFile, columns: Sequence[str], *, section: str
) -> Iterator[tuple[int, Mapping[str, str | None]]]:
    """Yield (line where the record begins, its cells); bytes that are no UTF-8 come as surrogates, judged cell by cell.

    Args:
        file: the table, its first line names the columns.
        columns: those that must be there.
        section: the parameters that name them, for the message.

    Raises:
        ValueError: if a column is missing, or the table is broken.
    """
    begins = 1
    with file.open() as content:
        head = content.read(HEAD)
    check_table(head, file.path)
    with (
        file.open() as content,
        io.TextIOWrapper(
            content, encoding="utf-8-sig", errors="surrogateescape", newline=""
        ) as text,
    ):
        reader = csv.DictReader(text, strict=True)
        try:
            missing = sorted({*columns} - set(map(composed, reader.fieldnames or ())))
            if missing:
                raise ValueError(
                    f"{file.path} must have the columns of {section}, got none named {missing}; "
                    f"it has {list(reader.fieldnames or ())}"
                )
            begins = reader.line_num + 1
            for cells in reader:
                yield begins, {composed(key) if key else key: cell for key, cell in cells.items()}
                begins = reader.line_num + 1
        except csv.Error as error:
            raise ValueError(broken_record(file.path, begins, error)) from error


def check_width(cells: Mapping[str, object], wanted: Sequence[str]) -> None:
    """Refuse a row of a table with more cells than the header, or without one that is wanted.

    Raises:
        RowError: naming how many there are.
    """
    names, more = [name for name in cells if name is not None], cells.get(None)  # type: ignore[call-overload]
    if isinstance(more, list):
        raise RowError(
            f"the row must have {len(names)} cells as the header has, got {len(names) + len(more)}; put cells with commas "
            "in quotes"
        )
    given = sum(cells[name] is not None for name in names)
    if any(cells[name] is None for name in wanted):
        raise RowError(
            f"the row must have {len(names)} cells as the header has, got {given}; complete it or leave it out"
        )


def broken_record(path: str, line: int, error: csv.Error) -> str:
    """Return the sentence about a record that the CSV reader refuses; ``line`` is where the record begins."""
    if "field limit" in str(error):
        got = f"a cell of more than {csv.field_size_limit()} characters"
    else:
        got = "a quote that is never closed" if "unexpected end" in str(error) else str(error)
    return f"{path} line {line} must be a row of a CSV table, got {got}; look for a quote that is not closed or not doubled"


# The data root that the parameters name and the one that the catalogue reads are the same folder.


def check_root(found: Path, configured: str, *, task: str) -> None:
    """Refuse a data root that is not the one the parameters name.

    Args:
        found: the folder that was read.
        configured: ``<task>.data.root``.
        task: for the message.

    Raises:
        ValueError: if they are different folders.
    """
    named = tuple(part for part in PurePath(configured).parts if part not in ("..", "."))
    if (
        found.parts[len(found.parts) - len(named) :] != named
        and found.resolve() != Path(configured).resolve()
    ):
        raise ValueError(
            f"{task}.data.root must be the folder of the dataset {task}.raw, {found}, got {configured!r}; "
            f"set {task}_root in globals.yml, which both read"
        )


# What a later step says where the reading has refused rows: that comes first.


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


# The error of one row of the data: its place, and what is wrong with it.


class RowError(ValueError):
    """A row that cannot be used; its text is the reason that goes into the quarantine."""
