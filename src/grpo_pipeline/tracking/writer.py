"""Write to MLflow in a thread of its own, so that training never waits for it.

Work is done in the order in which it was posted. When the store first fails to answer, tracking ends for this run. Queued work is
dropped, the loss is announced once, and no error is raised. An entry that the store refuses (a name, a deleted run) is announced
and skipped.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0

MAX_REFUSALS_SHOWN = 3

SAY_AFTER_SECONDS = 15.0

HURRY_SECONDS = 5.0

# A request has limits of its own (runs.mlflow_defaults.MLFLOW_DEFAULTS), and an entry is a few requests.
ENTRY_SECONDS = 600.0


class UnsentError(RuntimeError):
    """The store works, but some entries were not sent."""


@dataclass(frozen=True)
class Entry:
    """Queued work of the thread.

    Attributes:
        work: what to do.
        future: of its result.
        is_last: whether it says how the run ended, which is sent even when the rest is left.
    """

    work: Callable[[], Any]
    future: "Future[Any]" = field(default_factory=Future)
    is_last: bool = False


class Writer:
    """Runs posted work in a daemon thread.

    Attributes:
        lost: why the store was given up, or None.
    """

    def __init__(
        self,
        *,
        on_lost: Callable[[BaseException], None],
        flush: Callable[[], None],
        is_refusal: Callable[[Any], bool],
    ):
        """Start the thread.

        Args:
            on_lost: announces that the store was given up; called once.
            flush: called about every two seconds, and before the end, in the thread.
            is_refusal: whether an error means "refused", not "gone".
        """
        self.lost: BaseException | None = None
        self._on_lost, self._flush, self._is_refusal = on_lost, flush, is_refusal
        self._queue: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._refusals, self._lock = 0, threading.Lock()
        self._done, self._left, self._hurries = 0, 0, False
        self._ended = (
            threading.Event()
        )  # a thread says of itself that it has ended after an interrupted join
        self._thread = threading.Thread(target=self._serve, name="mlflow-writer", daemon=True)
        self._thread.start()

    def post(self, work: Callable[[], T], *, is_last: bool = False) -> "Future[T | None]":
        """Queue work and return at once; the future holds None if the work was not done."""
        entry = Entry(work, is_last=is_last)
        self._queue.put(entry)
        return entry.future

    def close(self, *, timeout: float | None) -> bool:
        """Finish queued work; returns whether all of it was written.

        Without a limit, that takes as long as the store accepts entries. With a limit, and after Ctrl-C, queued work is dropped
        after a while, except entries about the end of the run.
        """
        self.post(self._flush)
        self._queue.put(None)
        try:
            if timeout is None:
                self._wait_while_it_moves()
            else:
                self._ended.wait(timeout / 2)
                self._hurry(timeout / 2, why=f"not all was written within {timeout:.0f} s")
        except KeyboardInterrupt:
            self._hurry(HURRY_SECONDS, why="not all was written before Ctrl-C")
        return self.lost is None

    def _wait_while_it_moves(self) -> None:
        self._ended.wait(SAY_AFTER_SECONDS)
        if not self._ended.is_set():
            logger.info(
                "MLflow is slow: the run is done, and %d entries are still to be sent; Ctrl-C leaves them",
                self._queue.qsize(),
            )
        while not self._ended.is_set():
            before = self._done
            self._ended.wait(ENTRY_SECONDS)
            if not self._ended.is_set() and self._done == before:
                self._give_up(UnsentError(f"no entry was taken within {ENTRY_SECONDS:.0f} s"))
                return

    def _hurry(self, seconds: float, *, why: str) -> None:
        """Drop queued work, except entries about the end of the run."""
        self._hurries = True
        with suppress(KeyboardInterrupt):
            self._ended.wait(seconds)
        if not self._ended.is_set() or self._left:
            self._give_up(UnsentError(why))

    def _serve(self) -> None:
        due = time.monotonic() + FLUSH_SECONDS
        while True:
            try:
                entry = self._queue.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                entry = Entry(self._flush)
            if entry is None:
                self._ended.set()
                return
            self._do(entry)
            if time.monotonic() >= due:
                self._do(Entry(self._flush))
                due = time.monotonic() + FLUSH_SECONDS

    def _do(self, entry: Entry) -> None:
        result = None
        if self._hurries and not entry.is_last:
            self._left += 1
        elif self.lost is None:
            try:
                result = entry.work()
            except Exception as error:  # noqa: BLE001 - whatever the tracker raises, training goes on
                self._handle(error)
        self._done += 1
        entry.future.set_result(result)

    def _handle(self, error: Exception) -> None:
        if not self._is_refusal(error):
            self._give_up(error)
        elif (count := self._refusals) < MAX_REFUSALS_SHOWN:
            self._refusals = count + 1
            logger.warning(
                "MLflow refused one entry, which is skipped: %s",
                str(error).partition("\n")[0][:300],
            )

    def _give_up(self, error: BaseException) -> None:
        with self._lock:
            is_news, self.lost = self.lost is None, self.lost or error
        if is_news:
            self._on_lost(error)
