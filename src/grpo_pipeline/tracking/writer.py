"""The one thread that talks to MLflow, so that training never waits for it.

Work is done in the order in which it was posted. The first time the store does not answer, tracking ends for this run: what is
still queued is dropped, the loss is announced once, and nothing is raised. What the store refuses (a name, a deleted run) is
announced and skipped.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
MAX_REFUSALS_SHOWN = 3


class Writer:
    """Runs posted work in a daemon thread.

    Attributes:
        lost: why the store was given up, or None.
    """

    def __init__(self, *, on_lost: Callable[[BaseException], None], flush: Callable[[], None], is_refusal: Callable[[Any], bool]):
        """Start the thread.

        Args:
            on_lost: announces that the store was given up; called once.
            flush: called about every two seconds, and before the end, in the thread.
            is_refusal: whether an error means "refused", not "gone".
        """
        self.lost: BaseException | None = None
        self._on_lost, self._flush, self._is_refusal = on_lost, flush, is_refusal
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._refusals, self._lock = 0, threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="mlflow-writer", daemon=True)
        self._thread.start()

    def post(self, work: Callable[[], T]) -> "Future[T | None]":
        """Queue work and return at once; the future holds None where it was not done."""
        future: Future[T | None] = Future()
        self._queue.put((work, future))
        return future

    def call(self, work: Callable[[], T], *, timeout: float) -> T | None:
        """Do work after all that is queued and return its result; None where it was not done in time."""
        try:
            return self.post(work).result(timeout)
        except TimeoutError:
            self._give_up(TimeoutError(f"no answer within {timeout:.0f} s"))
            return None

    def close(self, *, timeout: float) -> bool:
        """Finish what is queued; return whether all of it was written in time. Ctrl-C gives up what is left."""
        self.post(self._flush)
        self._queue.put(None)
        try:
            self._thread.join(timeout)
        except KeyboardInterrupt:
            self._give_up(InterruptedError("not all was written before Ctrl-C"))
        if self._thread.is_alive():
            self._give_up(TimeoutError(f"not all was written within {timeout:.0f} s"))
        return self.lost is None

    def _serve(self) -> None:
        due = time.monotonic() + FLUSH_SECONDS
        while True:
            try:
                item = self._queue.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                item = (self._flush, Future())
            if item is None:
                return
            self._do(*item)
            if time.monotonic() >= due:
                self._do(self._flush, Future())
                due = time.monotonic() + FLUSH_SECONDS

    def _do(self, work: Callable[[], Any], future: "Future[Any]") -> None:
        result = None
        if self.lost is None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - whatever the tracker raises, training goes on
                self._handle(error)
        future.set_result(result)

    def _handle(self, error: Exception) -> None:
        if not self._is_refusal(error):
            self._give_up(error)
        elif (count := self._refusals) < MAX_REFUSALS_SHOWN:
            self._refusals = count + 1
            logger.warning("MLflow refused one entry, which is skipped: %s", str(error).partition("\n")[0][:300])

    def _give_up(self, error: BaseException) -> None:
        with self._lock:
            is_news, self.lost = self.lost is None, self.lost or error
        if is_news:
            self._on_lost(error)
