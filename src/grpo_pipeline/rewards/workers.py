"""Keep a fixed number of reward processes busy: a thread feeds each process, and replaces it when it hangs or dies."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_pipeline.rewards.calling import Samples
from grpo_pipeline.rewards.functions import load_function
from grpo_pipeline.rewards.late_calls import LATE
from grpo_pipeline.rewards.measure import Measure
from grpo_pipeline.rewards.measuring import Outcome, measure_chunk
from grpo_pipeline.rewards.pool_error import RewardPoolError
from grpo_pipeline.rewards.process import WorkerDiedError, WorkerHungError, WorkerProcess
from grpo_pipeline.rewards.reward_prints import RewardPrints
from grpo_pipeline.rewards.second_calls import SecondCalls, refuse_change

logger = logging.getLogger(__name__)

Broken = (WorkerHungError, WorkerDiedError)

# A reward need not be thread-safe.
_HERE = threading.Lock()

START_SECONDS = 120.0
"""Of starting a process and importing a reward there."""


@dataclass(frozen=True)
class Chunk:
    """A chunk of samples that a single call measures, with its callbacks: ``done`` with their outcomes, or ``fail``."""

    measure: Measure
    samples: Samples
    done: Callable[[list[Outcome]], None]
    fail: Callable[[Exception], None]


class WorkerPool:
    """The processes and their threads. Threads and processes start with the first chunk and end with ``close``."""

    def __init__(self, *, workers: int, timeout_seconds: float) -> None:
        """Begin without threads and processes."""
        self.timeout_seconds = timeout_seconds
        self.replaced = 0
        # Re-entrant: a garbage collection inside a locked part may close this very worker pool.
        self._lock = threading.RLock()
        self._chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._workers: set[WorkerProcess] = set()
        self._threads: list[threading.Thread] = []
        self._lanes = [_Lane() for _ in range(workers)]
        self._count, self._is_closed = workers, False
        self._prints, self._second_calls = RewardPrints(), SecondCalls()

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are alive or not yet replaced."""
        with self._lock:
            return sorted(worker.pid for worker in self._workers)

    def add(self, chunk: Chunk) -> None:
        """Queue a chunk; without processes it is measured at once in this process.

        Raises:
            RewardPoolError: after ``close``.
        """
        with self._lock:
            self.refuse_if_closed()
            while len(self._threads) < self._count:
                self._threads.append(
                    threading.Thread(target=self._keep, name="reward worker", daemon=True)
                )
                self._threads[-1].start()
            if self._count:
                self._chunks.put(chunk)
        if not self._count:
            self._answer(chunk, _Slot())

    def call(
        self, lane: int, function: str, given: Mapping[str, Any], *, loads: tuple[str, ...] = ()
    ) -> Any:
        """Call a function in the process of a lane, which finds there what it kept before, and wait; see ``RewardPool.call``."""
        place = self._lanes[lane % self._count]
        with place.lock:
            for path in (*loads, function):
                worker = self._ready(place.slot, path)
            request = {"call": function, "given": dict(given)}
            try:
                return worker.ask(request, seconds=self.timeout_seconds)["returned"]
            except WorkerHungError:
                self._replace(place.slot)
                limit = f"{self.timeout_seconds:g} s (reward_pool.timeout_seconds)"
                raise TimeoutError(f"no answer within {limit}") from None
            except WorkerDiedError as error:
                self._replace(place.slot)
                raise RuntimeError(f"its process ended with {error}") from error

    def close(self) -> None:
        """Kill every process, fail pending chunks, and wait until processes and threads are gone."""
        with self._lock:
            self._is_closed = True
            for worker in self._workers:
                worker.kill()
            for _ in self._threads:
                self._chunks.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        for lane in self._lanes:
            with lane.lock:
                self._dismiss(lane.slot)
        self._prints.close()

    def refuse_if_closed(self) -> None:
        """Raise after ``close``.

        Raises:
            RewardPoolError: then.
        """
        with self._lock:
            if self._is_closed:
                raise RewardPoolError(
                    "the reward pool must be open, got one that was closed; make another one"
                )

    def _keep(self) -> None:
        slot = _Slot()
        while (chunk := self._chunks.get()) is not None:
            self._answer(chunk, slot)
            del chunk  # it knows the pool, which could not be collected while this thread waits for the next one
        self._dismiss(slot)

    def _answer(self, chunk: Chunk, slot: "_Slot") -> None:
        """Measure a chunk, a few samples of it twice, and call its callbacks."""
        try:
            outcomes = self._measure(slot, chunk.samples, measure=chunk.measure)
            self._measure_again(slot, chunk, outcomes)
            chunk.done(outcomes)
        except Exception as error:  # noqa: BLE001 - whoever waits for the chunk must hear of it
            chunk.fail(error)

    def _measure(self, slot: "_Slot", samples: Samples, *, measure: Measure) -> list[Outcome]:
        """Measure samples; a call that hangs or ends its process is tried again, so that a busy machine changes no value.

        A user's reward is then measured sample by sample, so that only the sample at fault gets no value. The project's own
        rewards are pure and short: if they hang, the machine is at fault, and every sample gets its value.
        """
        if not self._count:
            return _measure_here(measure, samples, self._prints)
        try:
            return self._ask(slot, samples, measure)
        except Broken as error:
            self._replace(slot)
            if not measure.is_built_in:
                return [self._measure_alone(slot, sample, measure=measure) for sample in samples]
            first = error
        try:
            return self._ask(slot, samples, measure)
        except WorkerDiedError as error:
            self._replace(slot)
            raise RewardPoolError(
                f"a process that measures {measure.function!r} must live, got {error}, after {first or 'no answer in time'}; "
                "free memory, or see what kills it"
            ) from error
        except WorkerHungError:
            self._replace(slot)
            return _measure_here(measure, samples, self._prints)

    def _measure_alone(
        self, slot: "_Slot", sample: tuple[str, Any], *, measure: Measure
    ) -> Outcome:
        try:
            return self._ask(slot, [sample], measure)[0]
        except WorkerHungError:
            self._replace(slot)
            return f"it took longer than {self.timeout_seconds:g} s, in its chunk and alone"
        except WorkerDiedError as error:
            self._replace(slot)
            return f"its process ended with {error}"

    def _measure_again(self, slot: "_Slot", chunk: Chunk, outcomes: list[Outcome]) -> None:
        """Call a user's reward again on a few samples, at first in another process.

        Raises:
            RewardPoolError: if a value has changed.
        """
        places, is_first = self._second_calls.choose(chunk.measure, outcomes)
        if not places:
            return
        samples = [chunk.samples[place] for place in places]
        other = _Slot() if is_first and self._count else slot
        try:
            again = (
                self._ask(other, samples, chunk.measure)
                if self._count
                else _measure_here(chunk.measure, samples, self._prints)
            )
        except Broken:
            self._replace(other)
            return
        finally:
            if other is not slot:
                self._dismiss(other)
        refuse_change(chunk.measure, samples, [outcomes[place] for place in places], again)

    def _ask(self, slot: "_Slot", samples: Samples, measure: Measure) -> list[Outcome]:
        worker = self._ready(slot, measure.function)
        request: dict[str, Any] = {"function": measure.function, "options": dict(measure.options)}
        request |= {
            "subjects": [subject for subject, _ in samples],
            "references": [list(texts) for _, texts in samples],
        }
        try:
            return list(worker.ask(request, seconds=self.timeout_seconds)["outcomes"])
        except WorkerHungError:
            LATE.add(measure.function, seconds=self.timeout_seconds)
            raise

    def _ready(self, slot: "_Slot", function: str) -> WorkerProcess:
        """Get a process that has imported the function; a process that does not start in time is tried again once."""
        for is_last in (False, True):
            with self._lock:
                self.refuse_if_closed()
                if slot.worker is None:
                    slot.worker = WorkerProcess(self._prints)
                    self._workers.add(slot.worker)
            try:
                refusal = slot.worker.load(function, seconds=START_SECONDS)
            except Broken as error:
                self._dismiss(slot)
                self.refuse_if_closed()
                how = str(error) or f"no answer after {START_SECONDS:g} s"
                if is_last:
                    raise RewardPoolError(
                        f"a reward process must import {function!r}, got {how}, twice; import it by hand"
                    ) from error
                continue
            if refusal is not None:
                raise RewardPoolError(refusal)
            break
        assert slot.worker is not None
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


def _measure_here(measure: Measure, samples: Samples, prints: RewardPrints) -> list[Outcome]:
    """Measure samples in this process, without a time limit; ``prints`` passes on their prints.

    Raises:
        RewardPoolError: if the function cannot be imported.
    """
    try:
        function = load_function(measure.function)
    except ValueError as error:
        raise RewardPoolError(str(error)) from error
    with _HERE, prints.limit_this_thread():
        return measure_chunk(
            function,
            measure.options,
            [subject for subject, _ in samples],
            [texts for _, texts in samples],
        )


@dataclass
class _Slot:
    """The present process of a thread."""

    worker: WorkerProcess | None = None


@dataclass
class _Lane:
    """A process that a caller finds again; a single caller asks it at a time."""

    slot: _Slot = field(default_factory=_Slot)
    # Re-entrant, as that of the pool.
    lock: threading.RLock = field(default_factory=threading.RLock)
