"""Show a whole run in a line: the share done, the present node, and the time left.

The duration of each node is stored beside the results, so that the next run can estimate its time. Loops report the time left of
the present node, from their own speed.
"""

import json
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from logging import getLogger
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from grpo_pipeline.core.storage.replacement import replace_file
from grpo_pipeline.runs.pace import Pace
from grpo_pipeline.runs.progress_line import Line
from grpo_pipeline.runs.progress_listeners import show_in
from grpo_pipeline.runs.progress_words import Moment, words


class Trainings(NamedTuple):
    """How much was left of the trainings of a run, and when that was said."""

    kind: str
    left: float
    at: float


class RunLine:
    """The line of a run; while it is open, it shows every loop of this process.

    A node is assumed to take as long as in the last run in the same folder. The line shows no time left before all durations are
    known. Once trainings have begun, an unknown node is assumed to take the mean duration of the others.

    Args:
        description: description of the run.
        nodes: names of its nodes, with the expected seconds of each; None if unknown.
    """

    def __init__(self, description: str, nodes: Mapping[str, float | None]) -> None:
        self._expected = dict(nodes)
        self._took: dict[str, float] = {}
        self._node, self._stage, self._arm, self._begun = "", "", "", 0.0
        self._loop: Pace | None = None
        self._trainings: Trainings | None = None
        self._line = Line(description)
        self._close = show_in(self)
        self._logging = _log_above(self._line)
        self._logging.__enter__()

    def begin(self, node: str, stage: str, arm: str = "") -> None:
        """Record the beginning of a node, with its stage and its arm, if it has one. The node before it is done."""
        self._end()
        self._node, self._stage, self._arm, self._begun = node, stage, arm, time.monotonic()
        self._show([])

    def report(self, moment: Moment) -> None:
        """Show the progress of the node's loop."""
        if self._loop is None or self._loop.description != moment.description:
            self._loop = Pace(moment.description)
        self._loop.report(moment)
        self._show([words(moment).removeprefix(f"{self._stage} ")])

    def show(self, left: float | None, texts: list[str]) -> None:
        """Show trainings that run at once; each is a node of the present node's kind."""
        if left is not None:
            self._trainings = Trainings(_kind(self._node), left, time.monotonic())
        self._show(texts)

    def finish(self) -> None:
        """Show that the run is done."""
        self._end()
        self._line.show(0.0, ["done"])

    def seconds(self) -> dict[str, float]:
        """Map each finished node to its duration."""
        return dict(self._took)

    def left(self) -> float | None:
        """Estimate the seconds left; None if unknown."""
        now, trainings, kind = time.monotonic(), self._trainings, _kind(self._node)
        waiting = [name for name in self._expected if name not in {*self._took, self._node}]
        rest = 0.0
        if trainings:  # what is left of them is left of all of them
            others = [name for name in waiting if _kind(name) != trainings.kind]
            if kind == trainings.kind or others != waiting:
                rest += max(trainings.left - (now - trainings.at), 0.0)
            waiting = others
        if not (trainings and kind == trainings.kind):
            of_loop = self._loop.left() if self._loop else None
            expected = self._expected.get(self._node) or 0.0
            rest += max(expected - (now - self._begun), of_loop or 0.0)
        unknown = sum(self._expected[name] is None for name in waiting)
        if not unknown:
            return rest + sum(self._expected[name] or 0.0 for name in waiting)
        if not trainings:
            return None
        took = [seconds for name, seconds in self._took.items() if _kind(name) != trainings.kind]
        known = sum(self._expected[name] or 0.0 for name in waiting)
        return rest + known + unknown * mean(took or [0.0])

    def close(self) -> None:
        """End the line."""
        self._logging.__exit__(None, None, None)
        self._close()
        self._line.close()

    def _end(self) -> None:
        if self._node:
            self._took[self._node] = time.monotonic() - self._begun
        self._loop = None

    def _show(self, texts: list[str]) -> None:
        place = self._stage if texts else f"{self._stage} {self._arm}".rstrip()
        told = f"{place}: {', '.join(texts or [_kind(self._node)])}"
        self._line.show(self.left(), [told])


def expected_seconds(file: Path) -> dict[str, float]:
    """Read the durations of the last run's nodes; empty if the file is missing or invalid."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): float(seconds) for name, seconds in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def keep_seconds(file: Path, seconds: Mapping[str, float]) -> None:
    """Write the durations of nodes; nodes that did not run keep theirs.

    Nothing else depends on the file, so a full disk is no error.
    """
    kept = expected_seconds(file) | {name: round(value, 3) for name, value in seconds.items()}
    with suppress(OSError):
        replace_file(file, json.dumps(kept, indent=0, sort_keys=True).encode())


def _kind(node: str) -> str:
    """Return a node's name without its box and its arm."""
    return node.rpartition(".")[2]


def _log_above(line: Line) -> AbstractContextManager[None]:
    """Print log messages above a bar, instead of inside."""
    if not line.is_bar:
        return nullcontext()
    from tqdm.contrib.logging import logging_redirect_tqdm

    loggers = [getLogger(), getLogger(__name__.partition(".")[0])]
    above: AbstractContextManager[None] = logging_redirect_tqdm(loggers=loggers)
    return above
