"""Pass prints of rewards on to the standard error of this process, up to a limit."""

import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

LIMIT_BYTES = 65536


class RewardPrints:
    """A filter that passes on at most ``limit`` bytes of the prints of a pool's rewards, and counts the rest."""

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        """Begin without prints."""
        self.cut = 0
        self._limit, self._room = limit, limit
        self._lock = threading.Lock()

    def pass_on(self, printed: bytes, to: TextIO | None = None) -> None:
        """Show prints up to the limit, on the standard error or another stream; at the limit, write that once."""
        with self._lock:
            shown, is_first = printed[: self._room], not self.cut
            self._room -= len(shown)
            self.cut += len(printed) - len(shown)
            text = shown.decode(errors="replace")
            if is_first and self.cut:
                text += f"\n[rewards have printed {self._limit} bytes; what they print from here on is not shown]\n"
            _show(text, to)

    def close(self) -> None:
        """Write how much was not shown."""
        with self._lock:
            if self.cut:
                _show(
                    f"[{self.cut} bytes that rewards printed were not shown; print less, or write them to a file]\n"
                )
            self.cut = 0

    @contextlib.contextmanager
    def limit_this_thread(self) -> Iterator[None]:
        """Filter the prints of this thread; prints of other threads are unchanged."""
        errors = sys.stderr
        printed, complained = (
            _OfOneThread(self, sys.stdout, errors),
            _OfOneThread(self, errors, errors),
        )
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
            yield


class _OfOneThread(io.TextIOBase):
    """A stream that filters its own thread's writes; other threads write to the original stream."""

    def __init__(self, prints: RewardPrints, others: TextIO, errors: TextIO) -> None:
        self._prints, self._others, self._errors, self._thread = (
            prints,
            others,
            errors,
            threading.get_ident(),
        )

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return self._others.write(text)
        self._prints.pass_on(text.encode(errors="replace"), to=self._errors)
        return len(text)

    def flush(self) -> None:
        self._others.flush()


def _show(text: str, stream: TextIO | None = None) -> None:
    """Write to the standard error, which may be closed already when a program ends."""
    stream = stream or sys.stderr
    if text and stream is not None:
        with contextlib.suppress(OSError, ValueError):
            stream.write(text)
            stream.flush()
