"""Show progress on stderr: a bar with the time left on a terminal, a plain line now and then elsewhere, or nothing.

``GRPO_PROGRESS=off`` mutes it (tests, notebooks that show their own). Logs and CI get one line every ten seconds at most
and one at the end, so that a redirected run stays readable.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from grpo_pipeline.runs.loop_displays import Bar, Lines, Reported, Silent
from grpo_pipeline.runs.progress_listeners import listeners

T = TypeVar("T")


class Progress(Protocol):
    """The calls by which a loop reports its progress."""

    def update(self, n: int = 1, **postfix: float | str) -> None:
        """Count ``n`` finished items and show the latest values of ``postfix``."""


@contextmanager
def progress(total: int | None, description: str) -> Iterator[Progress]:
    """Show the progress of a loop that counts its own items, such as a generator's training loop.

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


def print_line(line: str) -> None:
    """Print a line to stderr, unless progress is muted."""
    if is_off():
        return
    if sys.stderr.isatty():  # above a bar that is drawn there
        from tqdm import tqdm

        tqdm.write(line, file=sys.stderr)
    else:
        print(line, file=sys.stderr, flush=True)


def is_off() -> bool:
    """Check whether GRPO_PROGRESS mutes all displays."""
    return os.environ.get("GRPO_PROGRESS", "").lower() == "off"


def _open(total: int | None, description: str) -> Any:
    if listeners:
        return Reported(total, description, listeners[-1])
    if is_off():
        return Silent()
    return (Bar if sys.stderr.isatty() else Lines)(total, description, file=sys.stderr)


def _length(iterable: Iterable[Any]) -> int | None:
    try:
        return len(iterable)  # type: ignore[arg-type]
    except TypeError:
        return None
