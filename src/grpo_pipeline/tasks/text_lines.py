"""Read a raw text file line by line, for every task that reads text."""

import hashlib
import io
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BOM = b"\xef\xbb\xbf"

HEAD = 65_536
"""Bytes at the beginning of a file that show its encoding and how its lines end."""

OTHER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x00\x00\xfe\xff": "UTF-32"}
SEPARATORS = (",", ";", "\t", "|")
"""Between the columns of a table; the first one that its first line has outside of quotes counts."""
QUOTED = re.compile(r'"[^"]*"')


@dataclass(frozen=True)
class TextFile:
    """A raw file, read as a stream.

    Attributes:
        path: path of the file, also for messages.
        content: its bytes if they are in memory; None reads the file at ``path`` on each request.
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


def find_separator(head: bytes, path: str) -> str:
    """Find what stands between the columns of a table, in its first line.

    Args:
        head: the first bytes of the file.
        path: of the file, for messages.

    Raises:
        ValueError: for a table of another encoding, or whose first line names no columns.
    """
    lines = head.removeprefix(BOM).replace(b"\r", b"\n")  # the table's reader knows all line ends
    check_encoding(lines, path)
    header = lines.decode(errors="replace").partition("\n")[0]
    if header.casefold().startswith("sep="):
        raise ValueError(
            f"{path} must begin with the names of its columns, got {header.strip()!r}; delete that line"
        )
    unquoted = QUOTED.sub("", header)
    return next((sign for sign in SEPARATORS if sign in unquoted), ",")


def composed(text: str) -> str:
    """Normalise a text to the Unicode form NFC, in which names and texts are compared: u with dots is a single letter."""
    return unicodedata.normalize("NFC", text)


def numbered_lines(file: TextFile) -> Iterator[tuple[int, bytes]]:
    """Yield (line, bytes) of the lines that are not blank, counted from 1, without a byte order mark.

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
