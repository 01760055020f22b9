"""Keep printing from ending a run: unencodable signs are replaced, and a closed reader is ignored."""

import codecs
import io
import os
import sys
import unicodedata
from contextlib import suppress
from typing import Any

PLAIN = "grpo_pipeline.plain"  # name of the way in which signs are replaced
SIGNS = {
    "−": "-",
    "–": "-",
    "—": "-",
    "…": "...",
    "→": "->",
    "≥": ">=",
    "≤": "<=",
    "≈": "~",
    "×": "x",
    "±": "+/-",
    "·": ".",
    "’": "'",
    "‘": "'",
    "“": '"',
    "”": '"',
    "█": "#",
}


class LastingStream:
    """A text stream that accepts any sign, and survives a closed pipe or a full disk.

    After such a failure, its output is dropped. All other attributes are those of the stream.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text and return its length, even if it was dropped."""
        encoding = self._stream.encoding
        try:
            self._stream.write(text.encode(encoding, PLAIN).decode(encoding))
        except OSError:
            self._lead_nowhere()
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        try:
            self._stream.flush()
        except OSError:
            self._lead_nowhere()

    def _lead_nowhere(self) -> None:
        """Replace the file by the null device, for buffered text and for the flush at the end."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def let_printing_last() -> None:
    """Make standard output and error of this process accept any sign and survive without a reader.

    What is no plain stream, such as that of a notebook, stays as it is.
    """
    codecs.register_error(PLAIN, plain_signs)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, LastingStream(stream))


def plain_signs(error: UnicodeError) -> tuple[str, int]:
    """Replace unencodable signs by ASCII: a plain form, a letter without accents, or ``?``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(plain_sign, error.object[error.start : error.end])), error.end


def plain_sign(sign: str) -> str:
    """Write a sign in ASCII."""
    if sign in SIGNS:
        return SIGNS[sign]
    letters = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
    return letters or "?"
