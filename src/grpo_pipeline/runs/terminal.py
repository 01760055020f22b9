"""Let printing never end a run: signs that a stream cannot write are replaced, and a reader that has gone is not missed."""

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
    """A text stream that takes any sign, and goes on when what it writes to does not: a closed pipe, a full disk.

    From then on what is written goes nowhere. All else is that of the stream.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """Return what the stream has."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text and return its length, whatever became of it."""
        encoding = self._stream.encoding
        try:
            self._stream.write(text.encode(encoding, PLAIN).decode(encoding))
        except OSError:
            self._lead_nowhere()
        return len(text)

    def flush(self) -> None:
        """Pass on what was written."""
        try:
            self._stream.flush()
        except OSError:
            self._lead_nowhere()

    def _lead_nowhere(self) -> None:
        """Put the null device in the place of the file, for what waits in the buffer and for the flush at the end."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def let_printing_last() -> None:
    """Make standard output and error of this process take any sign and go on without a reader.

    What is no plain stream, such as that of a notebook, stays as it is.
    """
    codecs.register_error(PLAIN, plain_signs)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, LastingStream(stream))


def plain_signs(error: UnicodeError) -> tuple[str, int]:
    """Return ASCII for what cannot be encoded: a sign's plain form, a letter without its accents, or ``?``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(plain_sign, error.object[error.start : error.end])), error.end


def plain_sign(sign: str) -> str:
    """Return one sign in ASCII."""
    if sign in SIGNS:
        return SIGNS[sign]
    letters = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
    return letters or "?"
