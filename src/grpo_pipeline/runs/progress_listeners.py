"""Report the progress of loops to a listener, instead of showing each by itself."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from grpo_pipeline.runs.progress_line import Display
from grpo_pipeline.runs.progress_words import Moment


class ShowsRun(Display, Protocol):
    """A display of a run and every loop in it."""

    def report(self, moment: Moment) -> None:
        """Show the progress of a loop."""


listeners: list[Callable[[Moment], None]] = []
within: list[ShowsRun] = []  # the run whose line shows all loops of this process; one at most


def show_in(run: ShowsRun) -> Callable[[], None]:
    """Show every loop of this process in the display of a run; the returned function ends that."""
    listeners.append(run.report)
    within.append(run)

    def end() -> None:
        listeners.remove(run.report)
        within.remove(run)

    return end


def tell_to(listener: Callable[[Moment], None]) -> None:
    """Stop showing progress in this process, and report it to a listener."""
    listeners.append(listener)


@contextmanager
def reported_to(listener: Callable[[Moment], None]) -> Iterator[None]:
    """Report the loops inside the block to a listener, instead of showing them."""
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)
