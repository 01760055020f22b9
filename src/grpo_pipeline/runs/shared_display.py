"""Show several loops in a common display, with the time left of all."""

import time
from collections.abc import Mapping

from grpo_pipeline.runs.loop_displays import Silent
from grpo_pipeline.runs.progress import is_off
from grpo_pipeline.runs.progress_line import Display, Line
from grpo_pipeline.runs.progress_listeners import within
from grpo_pipeline.runs.progress_words import Moment, words


class SharedDisplay:
    """A common display of several loops: share done, state of each loop, time left.

    Each loop's time left is estimated from its own speed, or from the speed of the others before it begins. The share done is a
    share of the time.
    """

    def __init__(self, description: str, weights: Mapping[str, float], *, at_once: int) -> None:
        """Begin with waiting loops; their weights are their relative durations."""
        self._weights, self._at_once = weights, at_once
        self._shares, self._seconds = dict.fromkeys(weights, 0.0), dict.fromkeys(weights, 0.0)
        self._begun: dict[str, float] = {}
        self._start = time.monotonic()
        self._texts: dict[str, str] = {}
        self._shown: Display = within[-1] if within else Silent() if is_off() else Line(description)

    def report(self, name: str, moment: Moment) -> None:
        """Record the progress of a loop, and show it."""
        now = time.monotonic()
        self._seconds[name] = now - self._begun.setdefault(name, now)
        if moment.total:
            self._shares[name] = moment.done / moment.total
            self._texts[name] = words(moment._replace(description=name))
        self._show()

    def end(self, name: str) -> None:
        """Record the end of a loop."""
        begun = self._begun.setdefault(name, self._start)  # of one that told nothing on the way
        self._seconds[name], self._shares[name] = time.monotonic() - begun, 1.0
        self._texts.pop(name, None)
        self._show()

    def seconds(self, name: str) -> float:
        """Compute how long a loop has run."""
        return self._seconds[name]

    def left(self) -> float | None:
        """Estimate the seconds left; None if unknown."""
        done = sum(self._weights[name] * share for name, share in self._shares.items())
        if not done:
            return None
        pace = sum(self._seconds[name] for name, share in self._shares.items() if share) / done
        rests = [
            self._seconds[name] * (1 / share - 1) if share else self._weights[name] * pace
            for name, share in self._shares.items()
        ]
        return max(max(rests), sum(rests) / self._at_once)

    def close(self) -> None:
        """End the display, unless it is that of the whole run."""
        if self._shown not in within:
            self._shown.close()

    def _show(self) -> None:
        done = sum(share == 1.0 for share in self._shares.values())
        count = [f"{done} of {len(self._shares)} done"] if len(self._shares) > self._at_once else []
        self._shown.show(self.left(), [*count, *self._texts.values()])
