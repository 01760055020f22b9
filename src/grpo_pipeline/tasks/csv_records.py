"""Read the rows of a CSV file with quoted line breaks, and the lines where they begin."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from grpo_pipeline.tasks.row_error import RowError
from grpo_pipeline.tasks.text_lines import HEAD, TextFile, composed, find_separator


def csv_records(
    file: TextFile, columns: Sequence[str], *, section: str
) -> Iterator[tuple[int, Mapping[str, str | None]]]:
    """Yield (line where the record begins, its cells); bytes that are no UTF-8 become surrogates, judged cell by cell.

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
    separator = find_separator(head, file.path)
    with (
        file.open() as content,
        io.TextIOWrapper(
            content, encoding="utf-8-sig", errors="surrogateescape", newline=""
        ) as text,
    ):
        reader = csv.DictReader(text, strict=True, delimiter=separator)
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
    """Refuse a row of a table that has more cells than the header, or lacks a wanted cell.

    Raises:
        RowError: the number of cells is wrong. The sentence states it.
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
    """Write the error sentence for a record that the CSV reader refuses; ``line`` is where the record begins."""
    if "field limit" in str(error):
        got = f"a cell of more than {csv.field_size_limit()} characters"
    else:
        got = "a quote that is never closed" if "unexpected end" in str(error) else str(error)
    return f"{path} line {line} must be a row of a CSV table, got {got}; look for a quote that is not closed or not doubled"
