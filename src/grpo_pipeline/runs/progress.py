"""Show progress on stderr: a bar with the time left on a terminal, a plain line now and then elsewhere, or nothing.

``GRPO_PROGRESS=off`` mutes it (tests, notebooks that show their own). Logs and CI get one line every ten seconds at most
and one at the end, so that a redirected run stays readable.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO, TypeVar

T = TypeVar("T")

PLAIN_INTERVAL_SECONDS = 10.0


class Progress(Protocol):
    """The calls by which a loop reports its progress."""

    def update(self, n: int = 1, **postfix: float | str) -> None:
        """Count ``n`` finished items and show the latest values of ``postfix``."""


class _Silent:
    def update(self, n: int = 1, **postfix: float | str) -> None:
        """Count nothing."""

    def close(self) -> None:
        """Print nothing."""


class _Bar:
    """A tqdm bar; it redraws ten times a second at most, whatever the number of updates."""

    def __init__(self, total: int | None, description: str, *, file: TextIO) -> None:
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # no watcher thread: a fork of the process must stay safe
        self._postfix: dict[str, float | str] = {}
        self._bar = tqdm(
            total=total,
            desc=description,
            file=file,
            ncols=_columns(file),
            nrows=20,
            leave=True,
            mininterval=0.1,
        )

    def update(self, n: int = 1, **postfix: float | str) -> None:
        self._postfix = postfix or self._postfix
        if self._bar.update(n):
            self._bar.set_postfix(self._postfix, refresh=False)

    def close(self) -> None:
        self._bar.set_postfix(self._postfix, refresh=False)
        self._bar.close()


class _Lines:
    """Plain lines: ``description: 120/400 (30%), 12 s, 28 s left, reward=0.42``."""

    def __init__(self, total: int | None, description: str, *, file: TextIO) -> None:
        self._total, self._description, self._file = total, description, file
        self._done, self._printed, self._postfix = 0, -1, dict[str, float | str]()
        self._start = self._printed_at = time.monotonic()

    def update(self, n: int = 1, **postfix: float | str) -> None:
        self._done += n
        self._postfix = postfix or self._postfix
        now = time.monotonic()
        if now - self._printed_at >= PLAIN_INTERVAL_SECONDS:
            self._printed_at = now
            self._print(now - self._start)

    def close(self) -> None:
        if self._printed != self._done:
            self._print(time.monotonic() - self._start)

    def _print(self, seconds: float) -> None:
        self._printed = self._done
        line = plain_line(
            self._description,
            done=self._done,
            total=self._total,
            seconds=seconds,
            postfix=self._postfix,
        )
        print(line, file=self._file, flush=True)


def plain_line(
    description: str,
    *,
    done: int,
    total: int | None,
    seconds: float,
    postfix: dict[str, float | str],
) -> str:
    """Return one line that says how far a loop is; the time left assumes that the items take equally long."""
    parts = [f"{done}/{total} ({done / total:.0%})" if total else f"{done}", f"{seconds:.0f} s"]
    if total and 0 < done < total:
        parts.append(f"{seconds / done * (total - done):.0f} s left")
    parts += [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in postfix.items()
    ]
    return f"{description}: {', '.join(parts)}"


@contextmanager
def progress(total: int | None, description: str) -> Iterator[Progress]:
    """Show the progress of a loop that counts its own items, a generator's training loop for instance.

    Args:
        total: number of items, None where it is unknown (no time left then).
        description: what is being done, in a few words.

    Yields:
        an object whose ``update(n, **postfix)`` counts ``n`` items and shows the latest values.
    """
    shown = _open(total, description)
    try:
        yield shown
    finally:
        shown.close()


def track(iterable: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the items of ``iterable`` while their progress is shown; ``total`` defaults to ``len(iterable)``."""
    count = total if total is not None else _length(iterable)
    with progress(count, description) as shown:
        for item in iterable:
            yield item
            shown.update()


def _open(total: int | None, description: str) -> Any:
    if os.environ.get("GRPO_PROGRESS", "").lower() == "off":
        return _Silent()
    return (_Bar if sys.stderr.isatty() else _Lines)(total, description, file=sys.stderr)


def _columns(file: TextIO) -> int:
    """Return the width of the terminal; some (pseudo) terminals say 0, and tqdm would then draw nothing."""
    try:
        return os.get_terminal_size(file.fileno()).columns or 100
    except OSError:
        return 100


def _length(iterable: Iterable[Any]) -> int | None:
    try:
        return len(iterable)  # type: ignore[arg-type]
    except TypeError:
        return None


def say(line: str) -> None:
    """Print one line to stderr, unless progress is muted."""
    if os.environ.get("GRPO_PROGRESS", "").lower() != "off":
        print(line, file=sys.stderr, flush=True)
