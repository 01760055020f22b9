"""A raw text file and its lines, as every task that reads text finds them."""

from collections.abc import Iterator
from dataclasses import dataclass

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextFile:
    """A file as it is: its path, for messages, and its bytes."""

    path: str
    content: bytes


def numbered_lines(file: TextFile) -> Iterator[tuple[int, bytes]]:
    """Yield (line, bytes) of the lines that are not blank, counted from 1; a byte order mark is no part of the first."""
    for number, line in enumerate(file.content.removeprefix(BOM).split(b"\n"), start=1):
        if line.strip():
            yield number, line
