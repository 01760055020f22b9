"""Show the progress of one loop: as a bar, in plain lines, to a listener, or not at all."""

import os
import time
from collections.abc import Callable
from typing import TextIO

from grpo_pipeline.runs.progress_words import Moment, plain_line

PLAIN_INTERVAL_SECONDS, TOLD_INTERVAL_SECONDS = 10.0, 0.5


class Bar:
    """A tqdm bar; it redraws ten times a second at most, whatever the number of updates."""

    def __init__(self, total: int | None, description: str, *, file: TextIO) -> None:
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # no watcher thread: a fork of the process must stay safe
        self._postfix: dict[str, float | str] = {}
        self._bar = tqdm(
            total=total,
            desc=description,
            file=file,
            ncols=terminal_columns(file),
            nrows=20,
            leave=True,
            mininterval=0.1,
        )

    def update(self, n: int = 1, **postfix: float | str) -> None:
        """Count ``n`` finished items and show the latest values of ``postfix``."""
        self._postfix = postfix or self._postfix
        if self._bar.update(n):
            self._bar.set_postfix(self._postfix, refresh=False)

    def close(self) -> None:
        """Leave the bar with the latest values."""
        self._bar.set_postfix(self._postfix, refresh=False)
        self._bar.close()


class Lines:
    """Plain lines: ``description: 120/400 (30%), 12 s, 28 s left, reward=0.42``."""

    def __init__(self, total: int | None, description: str, *, file: TextIO) -> None:
        self._total, self._description, self._file = total, description, file
        self._done, self._printed, self._postfix = 0, -1, dict[str, float | str]()
        self._start = self._printed_at = time.monotonic()

    def update(self, n: int = 1, **postfix: float | str) -> None:
        """Count ``n`` finished items and show the latest values of ``postfix``."""
        self._done += n
        self._postfix = postfix or self._postfix
        now = time.monotonic()
        if now - self._printed_at >= PLAIN_INTERVAL_SECONDS:
            self._printed_at = now
            self._print(now - self._start)

    def close(self) -> None:
        """Print the last state if it is new."""
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


class Reported:
    """Reports progress to a listener instead of a terminal, at most twice a second and at the end."""

    def __init__(
        self, total: int | None, description: str, listener: Callable[[Moment], None]
    ) -> None:
        self._listener, self._told_at = listener, time.monotonic()
        self._moment = Moment(description, 0, total, {})
        listener(self._moment)

    def update(self, n: int = 1, **postfix: float | str) -> None:
        """Count ``n`` finished items and report the latest values of ``postfix``."""
        name, done, total, before = self._moment
        self._moment = Moment(name, done + n, total, postfix or before)
        if time.monotonic() - self._told_at >= TOLD_INTERVAL_SECONDS:
            self._told_at = time.monotonic()
            self._listener(self._moment)

    def close(self) -> None:
        """Report the last state."""
        self._listener(self._moment)


class Silent:
    """Shows nothing."""

    def update(self, n: int = 1, **postfix: float | str) -> None:
        """Count nothing."""

    def show(self, left: float | None, texts: list[str]) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Print nothing."""


def terminal_columns(file: TextIO) -> int:
    """Read the width of the terminal; some (pseudo) terminals report 0, for which tqdm would draw nothing."""
    try:
        return os.get_terminal_size(file.fileno()).columns or 100
    except OSError:
        return 100
