"""Measure rewards of texts in worker processes, with a time limit and a cache.

The texts may be replies with reference answers or anything else that one string describes.
"""

import math
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from grpo_pipeline.rewards.calling import texts_beside
from grpo_pipeline.rewards.measure import Measure
from grpo_pipeline.rewards.measuring import Outcome
from grpo_pipeline.rewards.params import Failure, PoolParams
from grpo_pipeline.rewards.reward_cache import Key, RewardCache
from grpo_pipeline.rewards.workers import Chunk, WorkerPool


@dataclass(frozen=True)
class CollectedRewards:
    """Values [N], NaN for a sample without; per sample the reason for that, or None; and the path of the function."""

    values: NDArray[np.float64]
    causes: tuple[str | None, ...]
    function: str


@dataclass(frozen=True)
class PoolCounts:
    """Counts of a pool so far: samples found in the cache or repeated, measured, without a value; processes replaced."""

    hits: int
    measured: int
    failed: int
    replaced: int


class RewardPool:
    """A pool of processes that measure rewards; see ``submit``. It is a context manager, and closes itself at exit, too.

    If a reward is a pure function of each sample, values do not depend on the number of workers, their order or the cache. Only a
    time limit depends on the clock: all samples of a chunk that hangs get no value.
    """

    def __init__(self, params: PoolParams) -> None:
        """Store the parameters; processes start with the first samples."""
        self._params = params
        self._cache = RewardCache(params.cache_size)
        self._lock = threading.RLock()
        self._hits = self._measured = self._failed = 0
        self._worker_pool = WorkerPool(
            workers=params.workers, timeout_seconds=params.timeout_seconds
        )
        # The threads refer to the worker pool, not to this pool, so that an unused pool is collected and closed.
        self._finalizer = weakref.finalize(self, self._worker_pool.close)

    def __reduce__(self) -> tuple[type[Self], tuple[PoolParams]]:
        """Pickle as the parameters alone: in another process, the pool has not begun."""
        return type(self), (self._params,)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def counts(self) -> PoolCounts:
        """Return the counts so far."""
        with self._lock:
            return PoolCounts(self._hits, self._measured, self._failed, self._worker_pool.replaced)

    @property
    def failure(self) -> Failure:
        """The rule for a sample that could not be measured."""
        return self._params.failure

    @property
    def processes(self) -> int:
        """The number of processes that measure; 0 if this one does."""
        return self._params.workers

    @property
    def timeout_seconds(self) -> float:
        """The limit of one call."""
        return self._params.timeout_seconds

    @property
    def pids(self) -> list[int]:
        """List the ids of the processes that measure."""
        return self._worker_pool.pids

    def close(self) -> None:
        """End all processes and wait for that; pending samples raise RewardPoolError in ``result``."""
        self._finalizer()

    def submit(
        self,
        measure: Measure,
        subjects: Sequence[str],
        references: Sequence[Sequence[str]] | None = None,
        prompts: Sequence[str] | None = None,
        cells: Sequence[str] | None = None,
    ) -> Future[CollectedRewards]:
        """Begin to measure N samples and return at once; the future's ``result()`` waits for the values, in this order.

        A sample that was measured before, with the same references and reward, is looked up; a repeated sample is measured once.
        A sample without a value is not cached, and is tried again the next time.

        Args:
            measure: the reward.
            subjects: N texts.
            references: N lists of texts; None for empty ones.
            prompts: N texts, for a reward that reads them; None for empty ones.
            cells: N JSON objects, column -> value, for a reward that reads them; None for empty ones.

        Raises:
            ValueError: if the number of references is not N.
            RewardPoolError: after ``close``; from ``result()`` also if a process cannot be started or cannot import the reward.
        """
        texts = [()] * len(subjects) if references is None else [tuple(row) for row in references]
        if len(texts) != len(subjects):
            raise ValueError(
                f"references must have one row per sample, got {len(texts)} for {len(subjects)}; repeat them"
            )
        self._worker_pool.refuse_if_closed()
        beside = texts_beside(measure, texts, prompts, cells)
        keys = [
            (measure.digest, subject, tuple(row))
            for subject, row in zip(subjects, beside, strict=True)
        ]
        request = _Request(self, keys, measure.function)
        with self._lock:
            request.outcomes.update(
                (key, value) for key in keys if (value := self._cache.get(key)) is not None
            )
            missing = [key for key in dict.fromkeys(keys) if key not in request.outcomes]
            self._hits += len(keys) - len(missing)
            self._measured += len(missing)
        size = self._params.chunk_size
        request.begin(
            measure, [missing[start : start + size] for start in range(0, len(missing), size)]
        )
        return request.future

    def call(
        self, lane: int, function: str, given: Mapping[str, Any], *, loads: tuple[str, ...] = ()
    ) -> Any:
        """Call a function in a process beside those that measure, under the same limit, and wait for it.

        Args:
            lane: any number; calls with the same one share a process, so that the function finds what it kept.
            function: import path; it may raise nothing.
            given: keyword arguments, as JSON knows them.
            loads: import paths of what it needs, which are imported outside of the limit.

        Returns:
            What it returns, as JSON knows it.

        Raises:
            TimeoutError: without an answer in time. The process is replaced, and what it kept is lost.
            RuntimeError: if the process ends, or the pool was closed (RewardPoolError).
        """
        return self._worker_pool.call(lane, function, given, loads=loads)

    def _keep(self, keys: Iterable[Key], outcomes: dict[Key, Outcome]) -> None:
        with self._lock:
            for key in keys:
                outcome = outcomes[key]
                if isinstance(outcome, str):
                    self._failed += 1
                else:
                    self._cache.put(key, outcome)


class _Request:
    """The samples of a call of ``submit``: their outcomes so far, and the future that waits for the last of them."""

    def __init__(self, pool: RewardPool, keys: list[Key], function: str) -> None:
        self.future: Future[CollectedRewards] = Future()
        self.future.set_running_or_notify_cancel()  # what was begun cannot be cancelled
        self.outcomes: dict[Key, Outcome] = {}
        self._pool, self._keys, self._function = pool, keys, function
        self._lock = threading.Lock()
        self._open = 0

    def begin(self, measure: Measure, chunks: list[list[Key]]) -> None:
        """Queue every chunk; without chunks, the future is done."""
        self._open = len(chunks)
        for keys in chunks:
            self._pool._worker_pool.add(
                Chunk(
                    measure=measure,
                    samples=[(subject, texts) for _, subject, texts in keys],
                    done=partial(self._done, keys),
                    fail=self._fail,
                )
            )
        if not chunks:
            self._finish([])

    def _done(self, keys: list[Key], outcomes: list[Outcome]) -> None:
        with self._lock:
            self.outcomes.update(zip(keys, outcomes, strict=True))
            self._open -= 1
            is_last = not self._open
        if is_last and not self.future.done():
            self._finish(self._keys)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)

    def _finish(self, measured: list[Key]) -> None:
        self._pool._keep(dict.fromkeys(measured), self.outcomes)
        found = [self.outcomes[key] for key in self._keys]
        values = np.asarray(
            [math.nan if isinstance(outcome, str) else outcome for outcome in found],
            dtype=np.float64,
        )
        causes = tuple(outcome if isinstance(outcome, str) else None for outcome in found)
        self.future.set_result(CollectedRewards(values, causes, self._function))
