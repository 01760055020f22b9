"""Rewards of texts, measured in processes of their own, with a time limit and a memory.

The texts may be replies with reference answers or anything else that one string describes, such as molecules.
"""

import math
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.tasks.reward_cache import RewardCache
from grpo_pipeline.tasks.reward_crew import Chunk, Crew
from grpo_pipeline.tasks.reward_measure import Measure, Outcome

Key = tuple[str, str, tuple[str, ...]]


class PoolParams(BaseModel):
    """Where rewards are measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # 0 measures in this process: the same values, and nothing can stop a reward that hangs.
    workers: int = Field(ge=0)
    # Limit of one chunk; a process that passes it is killed and replaced.
    timeout_seconds: float = Field(gt=0, allow_inf_nan=False)
    # Limit for starting a process and importing a reward there.
    start_seconds: float = Field(gt=0, allow_inf_nan=False)
    # Samples per call.
    chunk_size: int = Field(ge=1)
    # Values kept.
    cache_size: int = Field(ge=0)


@dataclass(frozen=True)
class Measured:
    """Values [N], NaN for a sample that has none, per sample the sentence why, or None, and the function by its path."""

    values: NDArray[np.float64]
    causes: tuple[str | None, ...]
    function: str


@dataclass(frozen=True)
class PoolCounts:
    """Counts of a pool so far: samples found among known or repeated ones, measured, without a value; processes replaced."""

    hits: int
    measured: int
    failed: int
    replaced: int


class RewardPool:
    """Measures rewards; see ``submit``. Use it as a context manager, or ``close`` it; at exit it closes itself.

    Values do not depend on the number of workers, on their order or on the cache, for a reward that is a pure function of
    each sample. Only a time limit knows the clock: all samples of a chunk that hangs are without a value.
    """

    def __init__(self, params: PoolParams) -> None:
        """Start nothing yet: processes start with the first samples."""
        self._params = params
        self._cache = RewardCache(params.cache_size)
        self._lock = threading.RLock()
        self._hits = self._measured = self._failed = 0
        self._crew = Crew(workers=params.workers, timeout_seconds=params.timeout_seconds, start_seconds=params.start_seconds)
        # The threads know the crew and not the pool, so that a pool nobody holds is collected and closed.
        self._finalizer = weakref.finalize(self, self._crew.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def counts(self) -> PoolCounts:
        """Return the counts so far."""
        with self._lock:
            return PoolCounts(self._hits, self._measured, self._failed, self._crew.replaced)

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that measure."""
        return self._crew.pids

    def close(self) -> None:
        """End all processes and wait for that; samples that are not measured yet raise RewardPoolError in ``result``."""
        self._finalizer()

    def submit(
        self, measure: Measure, subjects: Sequence[str], references: Sequence[Sequence[str]] | None = None
    ) -> Future[Measured]:
        """Begin to measure N samples and return at once; ``result()`` of the future waits for the values, in this order.

        A sample that was measured before, with the same references and by the same reward, is looked up, and one that
        comes twice is measured once. What has no value is not kept and is tried again the next time.

        Args:
            measure: the reward.
            subjects: N texts.
            references: N lists of texts; None for empty ones.

        Raises:
            ValueError: for another number of references.
            RewardPoolError: after ``close``; from ``result()`` also where a process cannot be started or cannot import the
                reward: that is no sample's fault.
        """
        texts = [()] * len(subjects) if references is None else [tuple(row) for row in references]
        if len(texts) != len(subjects):
            raise ValueError(f"references must have one row per sample, got {len(texts)} for {len(subjects)}; repeat them")
        self._crew.refuse_if_closed()
        keys = [(measure.digest, subject, row) for subject, row in zip(subjects, texts, strict=True)]
        request = _Request(self, keys, measure.function)
        with self._lock:
            request.outcomes.update((key, value) for key in keys if (value := self._cache.get(key)) is not None)
            missing = [key for key in dict.fromkeys(keys) if key not in request.outcomes]
            self._hits += len(keys) - len(missing)
            self._measured += len(missing)
        size = self._params.chunk_size
        request.begin(measure, [missing[start : start + size] for start in range(0, len(missing), size)])
        return request.future

    def _keep(self, keys: Iterable[Key], outcomes: dict[Key, Outcome]) -> None:
        with self._lock:
            for key in keys:
                outcome = outcomes[key]
                if isinstance(outcome, str):
                    self._failed += 1
                else:
                    self._cache.put(key, outcome)


class _Request:
    """The samples of one ``submit``: their outcomes so far, and the future that waits for the last of them."""

    def __init__(self, pool: RewardPool, keys: list[Key], function: str) -> None:
        self.future: Future[Measured] = Future()
        self.future.set_running_or_notify_cancel()  # what was begun cannot be cancelled
        self.outcomes: dict[Key, Outcome] = {}
        self._pool, self._keys, self._function = pool, keys, function
        self._lock = threading.Lock()
        self._open = 0

    def begin(self, measure: Measure, chunks: list[list[Key]]) -> None:
        """Have every chunk measured; without any, the future is done."""
        self._open = len(chunks)
        for keys in chunks:
            self._pool._crew.add(
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
        values = np.asarray([math.nan if isinstance(outcome, str) else outcome for outcome in found], dtype=np.float64)
        causes = tuple(outcome if isinstance(outcome, str) else None for outcome in found)
        self.future.set_result(Measured(values, causes, self._function))
