"""Read raw text files of a data set line by line, and refuse unusable lines."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_pipeline.tasks.row_error import RowError
from grpo_pipeline.tasks.text_lines import TextFile


@dataclass(frozen=True)
class DialogueFiles:
    """The raw data of the dialogue task.

    Attributes:
        root: the data root.
        examples: rows or conversations.
        stories: the story corpus, None where there is no such file.
    """

    root: Path
    examples: TextFile
    stories: TextFile | None


def dump_lines(rows: list[dict[str, object]]) -> bytes:
    """Return rows as JSON lines in UTF-8."""
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def parse_line(line: bytes) -> dict[str, object]:
    """Return the object that a line of JSON holds.

    Raises:
        RowError: if the line is not UTF-8, not JSON or not an object.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise RowError(
            f"the line must be UTF-8, got byte 0x{line[error.start]:02x} at {error.start}; convert the file"
        ) from error
    try:
        # NaN is not valid JSON, but Python writes it for a missing number.
        found = json.loads(text, object_pairs_hook=unique_keys, parse_constant=lambda _: None)
    except RowError:
        raise
    # A plain ValueError means a number with more digits than Python reads.
    except (ValueError, RecursionError) as error:
        raise RowError(
            f"the line must be JSON, got {text.strip()[:40]!r} ({error}); correct it"
        ) from error
    if not isinstance(found, dict):
        raise RowError(
            f'the line must be a JSON object, got {type(found).__name__}; write {{"key": …}}'
        )
    return found


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON.

    Raises:
        RowError: if a key is there twice: JSON does not say which value would count.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = sorted(
            {repr(key) for key, _ in pairs if sum(key == other for other, _ in pairs) > 1}
        )
        raise RowError(
            f"every key must be there once, got {', '.join(twice)} more than once; keep the value that is meant"
        )
    return found


def read_text(cells: Mapping[str, object], key: str, *, default: str | None = None) -> str:
    """Return the text under a key, without outer blanks.

    Raises:
        RowError: if it is missing without a default, no text, blank without a default, or not encodable in UTF-8.
    """
    value = cells.get(key)
    value = (
        default if value is None else value
    )  # tables are written with null where a value is missing
    if value is None:
        got = "null" if key in cells else f"{sorted(cells)}"
        raise RowError(f"key {key!r} must be there, got {got}; add it")
    return clean_text(value, name=repr(key), may_be_empty=default is not None)


def read_id(cells: Mapping[str, object], key: str, *, default: str | None = None) -> str:
    """Return the name under a key: text, or a whole number, which pandas writes as 3.0 where another row has none.

    Raises:
        RowError: as ``read_text``.
    """
    value = cells.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return read_text(cells, key, default=default)


def lines_of(text: str) -> list[str]:
    """Split a text into the lines that are not blank; U+2028 and the like do not end a line, as in JSON."""
    return [line for line in re.split(r"\r\n|\r|\n", text) if line.strip()]


def clean_text(value: object, *, name: str, may_be_empty: bool = False) -> str:
    """Return a text without outer blanks.

    Raises:
        RowError: if it is no text, empty, or holds half of a surrogate pair, which no UTF-8 has.
    """
    if not isinstance(value, str):
        got, remedy = (
            ("nothing", "fill it or drop the row")
            if value is None
            else (type(value).__name__, "put it in quotes")
        )
        raise RowError(f"{name} must be text, got {got}; {remedy}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RowError(
            f"{name} must be UTF-8, got {value[error.start]!r} at {error.start}; convert the file"
        ) from error
    if not value.strip() and not may_be_empty:
        raise RowError(f"{name} must not be empty, got {value!r}; fill it or drop the row")
    return value.strip()
