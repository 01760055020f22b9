"""Show the state of several loops and the time left in a line."""

import sys
import time
from typing import Any, Protocol

from grpo_pipeline.runs.loop_displays import PLAIN_INTERVAL_SECONDS, terminal_columns
from grpo_pipeline.runs.progress_words import readable

BAR = "{desc} {percentage:3.0f}%|{bar:12}| "  # what is told of the loops stands behind it


class Display(Protocol):
    """A display of several loops."""

    def show(self, left: float | None, texts: list[str]) -> None:
        """Show the seconds left, None if unknown, and the state of each loop."""

    def close(self) -> None:
        """End the display."""


class Line:
    """A line with the time that is left: a bar on a terminal, else plain lines now and then."""

    def __init__(self, description: str) -> None:
        """Begin with nothing done."""
        self._description, self._start = description, time.monotonic()
        self._printed_at, self._last, self._printed = self._start, "", ""
        self._bar: Any = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            tqdm.monitor_interval = 0
            width = terminal_columns(sys.stderr)
            self._bar = tqdm(
                total=1.0, desc=description, file=sys.stderr, ncols=width, bar_format=BAR
            )

    @property
    def is_bar(self) -> bool:
        """Check whether the line is redrawn in its place."""
        return self._bar is not None

    def show(self, left: float | None, texts: list[str]) -> None:
        """Show the seconds left, and the state of each loop."""
        now = time.monotonic()
        seconds = now - self._start
        share = 0.0 if left is None else seconds / max(seconds + left, 1e-9)
        rest = [f"{readable(left)} left"] if left else []
        done = [] if left is None else [f"{share:.0%}"]
        self._last = f"{self._description}: {', '.join([*done, readable(seconds), *rest, *texts])}"
        if self._bar is not None:
            self._bar.n = min(share, 1.0)
            told = ", ".join([*rest, *texts])
            self._bar.bar_format = BAR + told.replace("{", "{{").replace("}", "}}")
            self._bar.refresh()
        elif now - self._printed_at >= PLAIN_INTERVAL_SECONDS:
            self._printed_at, self._printed = now, self._last
            print(self._last, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the last state of the bar, or print it if it is new."""
        if self._bar is not None:
            self._bar.close()
        elif self._last != self._printed:
            print(self._last, file=sys.stderr, flush=True)
