"""Show progress on stderr: a bar with the time left on a terminal, a plain line now and then elsewhere, or nothing.

``GRPO_PROGRESS=off`` mutes it (tests, notebooks that show their own). Logs and CI get one line every ten seconds at most
and one at the end, so that a redirected run stays readable.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TextIO, TypeVar

T = TypeVar("T")

BAR = "{desc} {percentage:3.0f}%|{bar:12}| "  # what is told of the loops stands behind it
PLAIN_INTERVAL_SECONDS, TOLD_INTERVAL_SECONDS = 10.0, 0.5


class Progress(Protocol):
    """The calls by which a loop reports its progress."""

    def update(self, n: int = 1, **postfix: float | str) -> None:
        """Count ``n`` finished items and show the latest values of ``postfix``."""


class Moment(NamedTuple):
    """The progress of a loop that is shown elsewhere: in another process, or as one of several."""

    description: str
    done: int
    total: int | None
    postfix: dict[str, float | str]


class _Silent:
    def update(self, n: int = 1, **postfix: float | str) -> None:
        """Count nothing."""

    def show(self, left: float | None, texts: list[str]) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Print nothing."""


class Display(Protocol):
    """A display of several loops."""

    def show(self, left: float | None, texts: list[str]) -> None:
        """Show the seconds left, None if unknown, and the state of each loop."""

    def close(self) -> None:
        """End the display."""


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


class _Reported:
    """Reports progress to a listener instead of a terminal, at most twice a second and at the end."""

    def __init__(
        self, total: int | None, description: str, listener: Callable[[Moment], None]
    ) -> None:
        self._listener, self._told_at = listener, time.monotonic()
        self._moment = Moment(description, 0, total, {})
        listener(self._moment)

    def update(self, n: int = 1, **postfix: float | str) -> None:
        name, done, total, before = self._moment
        self._moment = Moment(name, done + n, total, postfix or before)
        if time.monotonic() - self._told_at >= TOLD_INTERVAL_SECONDS:
            self._told_at = time.monotonic()
            self._listener(self._moment)

    def close(self) -> None:
        self._listener(self._moment)


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
        self._shown: Display = (
            _within[-1] if _within else _Silent() if is_off() else Line(description)
        )

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
        if self._shown not in _within:
            self._shown.close()

    def _show(self) -> None:
        done = sum(share == 1.0 for share in self._shares.values())
        count = [f"{done} of {len(self._shares)} done"] if len(self._shares) > self._at_once else []
        self._shown.show(self.left(), [*count, *self._texts.values()])


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
            width = _columns(sys.stderr)
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
    """Write the progress of a loop in a line; the time left assumes that items take equally long."""
    parts = [f"{done}/{total} ({done / total:.0%})" if total else f"{done}", f"{seconds:.0f} s"]
    if total and 0 < done < total:
        parts.append(f"{seconds / done * (total - done):.0f} s left")
    return f"{description}: {', '.join([*parts, *_pairs(postfix)])}"


def words(moment: Moment) -> str:
    """Write the progress of a loop in words: ``grpo 120/400 reward=0.42``."""
    count = f"{moment.done}/{moment.total}" if moment.total else f"{moment.done}"
    return " ".join([moment.description, count, *_pairs(moment.postfix)])


def readable(seconds: float) -> str:
    """Write a duration for people: ``95 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _pairs(values: Mapping[str, float | str]) -> list[str]:
    return [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items()
    ]


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


_listeners: list[Callable[[Moment], None]] = []
_within: list["ShowsRun"] = []  # the run whose line shows all loops of this process; one at most


class ShowsRun(Display, Protocol):
    """A display of a run and every loop in it."""

    def report(self, moment: Moment) -> None:
        """Show the progress of a loop."""


def show_in(run: ShowsRun) -> Callable[[], None]:
    """Show every loop of this process in the display of a run; the returned function ends that."""
    _listeners.append(run.report)
    _within.append(run)

    def end() -> None:
        _listeners.remove(run.report)
        _within.remove(run)

    return end


def tell_to(listener: Callable[[Moment], None]) -> None:
    """Stop showing progress in this process, and report it to a listener."""
    _listeners.append(listener)


@contextmanager
def reported_to(listener: Callable[[Moment], None]) -> Iterator[None]:
    """Report the loops inside the block to a listener, instead of showing them."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _open(total: int | None, description: str) -> Any:
    if _listeners:
        return _Reported(total, description, _listeners[-1])
    if is_off():
        return _Silent()
    return (_Bar if sys.stderr.isatty() else _Lines)(total, description, file=sys.stderr)


def is_off() -> bool:
    """Check whether GRPO_PROGRESS mutes all displays."""
    return os.environ.get("GRPO_PROGRESS", "").lower() == "off"


def _columns(file: TextIO) -> int:
    """Read the width of the terminal; some (pseudo) terminals report 0, for which tqdm would draw nothing."""
    try:
        return os.get_terminal_size(file.fileno()).columns or 100
    except OSError:
        return 100


def _length(iterable: Iterable[Any]) -> int | None:
    try:
        return len(iterable)  # type: ignore[arg-type]
    except TypeError:
        return None


def print_line(line: str) -> None:
    """Print a line to stderr, unless progress is muted."""
    if is_off():
        return
    if sys.stderr.isatty():  # above a bar that is drawn there
        from tqdm import tqdm

        tqdm.write(line, file=sys.stderr)
    else:
        print(line, file=sys.stderr, flush=True)
