"""A raw text file and its lines, as every task that reads text finds them."""

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


def numbered_lines(file: TextFile) -> Iterator[tuple[int, bytes]]:
    """Yield (line, bytes) of the lines that are not blank, counted from 1; a byte order mark is no part of the first."""
    with file.open() as content:
        for number, line in enumerate(content, start=1):
            text = (line.removeprefix(BOM) if number == 1 else line).removesuffix(b"\n")
            if text.strip():
                yield number, text
