"""Write the table of images that an environment holds."""

import csv
import io
from collections.abc import Iterable, Sequence

INDEX = "index.csv"


def as_csv(rows: Iterable[Sequence[str]]) -> str:
    """Write rows as the text of a CSV file."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()
