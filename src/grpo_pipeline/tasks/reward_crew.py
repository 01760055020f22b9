"""A fixed number of reward processes, each with a thread that feeds it chunks and replaces it when it hangs or dies."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_pipeline.tasks.reward_measure import Measure, Outcome
from grpo_pipeline.tasks.reward_process import WorkerDiedError, WorkerHungError, WorkerProcess

# (text, reference texts) of each sample.
Samples = Sequence[tuple[str, Sequence[str]]]


class RewardPoolError(RuntimeError):
    """Rewards cannot be measured at all, whatever the sample."""


@dataclass(frozen=True)
class Chunk:
    """Samples that are measured by one call, and who is told: ``done`` with one outcome each, or ``fail``."""

    measure: Measure
    samples: Samples
    done: Callable[[list[Outcome]], None]
    fail: Callable[[Exception], None]


class Crew:
    """The processes and their threads. Threads and processes start with the first chunk and end with ``close``."""

    def __init__(self, *, workers: int, timeout_seconds: float, start_seconds: float) -> None:
        """Start nothing yet."""
        self.timeout_seconds, self.start_seconds = timeout_seconds, start_seconds
        self.replaced = 0
        # Re-entrant: a garbage collection inside a locked part may close this very crew.
        self._lock = threading.RLock()
        self._chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._workers: set[WorkerProcess] = set()
        self._threads: list[threading.Thread] = []
        self._count, self._is_closed = workers, False

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are alive or not yet replaced."""
        with self._lock:
            return sorted(worker.pid for worker in self._workers)

    def add(self, chunk: Chunk) -> None:
        """Queue a chunk.

        Raises:
            RewardPoolError: after ``close``.
        """
        with self._lock:
            self.refuse_if_closed()
            while len(self._threads) < self._count:
                self._threads.append(threading.Thread(target=self._keep, name="reward worker", daemon=True))
                self._threads[-1].start()
            self._chunks.put(chunk)

    def close(self) -> None:
        """Kill every process, fail what is not measured yet, and wait until processes and threads are gone."""
        with self._lock:
            self._is_closed = True
            for worker in self._workers:
                worker.kill()
            for _ in self._threads:
                self._chunks.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def refuse_if_closed(self) -> None:
        """Raise after ``close``.

        Raises:
            RewardPoolError: then.
        """
        with self._lock:
            if self._is_closed:
                raise RewardPoolError("the reward pool must be open, got one that was closed; make another one")

    def _keep(self) -> None:
        slot = _Slot()
        while (chunk := self._chunks.get()) is not None:
            try:
                chunk.done(self._measure(slot, chunk.samples, measure=chunk.measure))
            except Exception as error:  # noqa: BLE001 - whoever waits for the chunk must hear of it
                chunk.fail(error)
            del chunk  # it knows the pool, which could not be collected while this thread waits for the next one
        self._dismiss(slot)

    def _measure(self, slot: "_Slot", samples: Samples, *, measure: Measure, is_retry: bool = False) -> list[Outcome]:
        """Measure samples; where the process dies, once more one by one: only who ends a process alone is to blame."""
        worker = self._ready(slot, measure)
        request: dict[str, Any] = {"function": measure.function, "options": dict(measure.options)}
        request |= {"subjects": [subject for subject, _ in samples], "references": [list(texts) for _, texts in samples]}
        try:
            return list(worker.ask(request, seconds=self.timeout_seconds)["outcomes"])
        except WorkerHungError:
            self._replace(slot)
            cause = f"its chunk of {len(samples)} took longer than {self.timeout_seconds:g} s"
            return [cause for _ in samples]
        except WorkerDiedError as error:
            self._replace(slot)
            if is_retry:
                return [f"its process ended with {error}"]
        return [self._measure(slot, [sample], measure=measure, is_retry=True)[0] for sample in samples]

    def _ready(self, slot: "_Slot", measure: Measure) -> WorkerProcess:
        with self._lock:
            self.refuse_if_closed()
            if slot.worker is None:
                slot.worker = WorkerProcess()
                self._workers.add(slot.worker)
        try:
            refusal = slot.worker.load(measure.function, seconds=self.start_seconds)
        except (WorkerHungError, WorkerDiedError) as error:
            self._dismiss(slot)
            self.refuse_if_closed()
            how = str(error) or f"no answer after {self.start_seconds:g} s"
            raise RewardPoolError(f"a reward process must import {measure.function!r}, got {how}; import it by hand") from error
        if refusal is not None:
            raise RewardPoolError(refusal)
        return slot.worker

    def _replace(self, slot: "_Slot") -> None:
        self._dismiss(slot)
        self.refuse_if_closed()
        with self._lock:
            self.replaced += 1

    def _dismiss(self, slot: "_Slot") -> None:
        worker, slot.worker = slot.worker, None
        if worker is not None:
            worker.end()
            with self._lock:
                self._workers.discard(worker)


@dataclass
class _Slot:
    """The process that one thread has at the moment."""

    worker: WorkerProcess | None = None
