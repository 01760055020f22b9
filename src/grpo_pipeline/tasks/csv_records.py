"""The rows of a CSV file with quoted line breaks, and the lines where they begin."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from grpo_pipeline.tasks.text_lines import BOM, TextFile


def csv_records(file: TextFile, columns: Sequence[str], *, section: str) -> Iterator[tuple[int, Mapping[str, str | None]]]:
    """Yield (line where the record begins, its cells); bytes that are no UTF-8 come as surrogates, judged cell by cell.

    Args:
        file: the table, its first line names the columns.
        columns: those that must be there.
        section: the parameters that name them, for the message.

    Raises:
        ValueError: if a column is missing, or the table is broken.
    """
    text = file.content.removeprefix(BOM).decode(errors="surrogateescape")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = sorted({*columns} - set(reader.fieldnames or ()))
    if missing:
        raise ValueError(
            f"{file.path} must have the columns of {section}, got none named {missing}; it has {list(reader.fieldnames or ())}"
        )
    begins = reader.line_num + 1
    try:
        for cells in reader:
            yield begins, cells
            begins = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{file.path} line {begins} must be a row of a CSV table, got {error}; correct the quotes") from error
