"""Estimate the time left of a loop from its own speed."""

import time

from grpo_pipeline.runs.progress_words import Moment


class Pace:
    """An estimate of a loop's time left, from its own speed so far."""

    def __init__(self, description: str) -> None:
        """Begin now."""
        self.description = description
        self._begun, self._share = time.monotonic(), 0.0

    def report(self, moment: Moment) -> None:
        """Record the progress of the loop."""
        self._share = moment.done / moment.total if moment.total else 0.0

    def left(self) -> float | None:
        """Estimate the seconds left; None if unknown."""
        seconds = time.monotonic() - self._begun
        return seconds * (1 / self._share - 1) if self._share else None
