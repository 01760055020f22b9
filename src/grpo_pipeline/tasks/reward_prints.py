"""Pass on what reward processes print to the standard error of this process, up to a limit."""

import contextlib
import sys
import threading

LIMIT_BYTES = 65536


class RewardPrints:
    """Passes on what the processes of a pool print, together at most ``limit`` bytes, and counts the rest."""

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        """Start with nothing printed."""
        self.cut = 0
        self._limit, self._room = limit, limit
        self._lock = threading.Lock()

    def pass_on(self, printed: bytes) -> None:
        """Show as much as there is room for; where the room ends, say so once."""
        with self._lock:
            shown, is_first = printed[: self._room], not self.cut
            self._room -= len(shown)
            self.cut += len(printed) - len(shown)
            text = shown.decode(errors="replace")
            if is_first and self.cut:
                text += f"\n[reward processes have printed {self._limit} bytes; what they print from here on is not shown]\n"
            _show(text)

    def close(self) -> None:
        """Say how much was not shown."""
        with self._lock:
            if self.cut:
                _show(f"[{self.cut} bytes that reward processes printed were not shown; print less, or write them to a file]\n")
            self.cut = 0


def _show(text: str) -> None:
    """Write to the standard error, which may be closed already when a program ends."""
    if text and sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()
