"""Measure rewards of texts in worker processes, with a time limit and a cache.

The texts may be replies with reference answers or anything else that one string describes.
"""

import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo_pipeline.core.rewards import FailureRule, apply_failure_rule
from grpo_pipeline.rewards.functions import Measure, Outcome, beside_prompts, shorten
from grpo_pipeline.rewards.params import FailureParams, PoolParams
from grpo_pipeline.rewards.workers import Chunk, WorkerPool

# Measured rewards, kept under exactly what they were measured from.


class RewardCache:
    """The last ``size`` values that were read or written, by key; size 0 keeps nothing."""

    def __init__(self, size: int) -> None:
        """Start empty."""
        self._size = size
        self._values: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> float | None:
        """Return the value under a key, now the latest one, or None."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: Hashable, value: float) -> None:
        """Keep a value as the latest one, and forget the one that was not asked for the longest."""
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > self._size:
            self._values.popitem(last=False)


Key = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True)
class CollectedRewards:
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
        self._worker_pool = WorkerPool(
            workers=params.workers,
            timeout_seconds=params.timeout_seconds,
            start_seconds=params.start_seconds,
        )
        # The threads know the worker pool and not the pool, so that a pool nobody holds is collected and closed.
        self._finalizer = weakref.finalize(self, self._worker_pool.close)

    def __reduce__(self) -> tuple[type[Self], tuple[PoolParams]]:
        """Be, in another process, a pool that has not begun."""
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
    def pids(self) -> list[int]:
        """Ids of the processes that measure."""
        return self._worker_pool.pids

    def close(self) -> None:
        """End all processes and wait for that; samples that are not measured yet raise RewardPoolError in ``result``."""
        self._finalizer()

    def submit(
        self,
        measure: Measure,
        subjects: Sequence[str],
        references: Sequence[Sequence[str]] | None = None,
        prompts: Sequence[str] | None = None,
    ) -> Future[CollectedRewards]:
        """Begin to measure N samples and return at once; ``result()`` of the future waits for the values, in this order.

        A sample that was measured before, with the same references and by the same reward, is looked up, and one that
        comes twice is measured once. What has no value is not kept and is tried again the next time.

        Args:
            measure: the reward.
            subjects: N texts.
            references: N lists of texts; None for empty ones.
            prompts: N texts, for a reward that reads them; None for empty ones.

        Raises:
            ValueError: for another number of references.
            RewardPoolError: after ``close``; from ``result()`` also where a process cannot be started or cannot import the
                reward: that is no sample's fault.
        """
        texts = [()] * len(subjects) if references is None else [tuple(row) for row in references]
        if len(texts) != len(subjects):
            raise ValueError(
                f"references must have one row per sample, got {len(texts)} for {len(subjects)}; repeat them"
            )
        self._worker_pool.refuse_if_closed()
        beside = beside_prompts(measure, texts, prompts)
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
        self.future: Future[CollectedRewards] = Future()
        self.future.set_running_or_notify_cancel()  # what was begun cannot be cancelled
        self.outcomes: dict[Key, Outcome] = {}
        self._pool, self._keys, self._function = pool, keys, function
        self._lock = threading.Lock()
        self._open = 0

    def begin(self, measure: Measure, chunks: list[list[Key]]) -> None:
        """Have every chunk measured; without any, the future is done."""
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


# Rewards of groups of samples that are being measured: named components [P, G], with a rule for what could not be measured.
#
# A reward that fails is never a 0: it is left out, pays a stated penalty or stops the run, and is counted with its cause.

# Texts of the training data that rewards of the user's are called on before anything is trained.
TRIED = 8


class RewardFailedError(RuntimeError):
    """A reward could not be measured, and the rule is ``stop``."""


@dataclass(frozen=True)
class GroupRewards:
    """The rewards of P x G samples.

    Attributes:
        components: name -> float64 [P, G], detached; NaN (not scored) where the component failed under the rule ``exclude``, and
            where the sample was not measured.
        weights: name -> weight, the same names.
        is_failed: name -> bool [P, G], True where the component could not be measured.
        causes: name -> why, of the first sample that it could not be measured of: function, sample, what happened.
    """

    components: Mapping[str, Tensor]
    weights: Mapping[str, float]
    is_failed: Mapping[str, Tensor]
    causes: Mapping[str, str]

    @property
    def failures(self) -> dict[str, int]:
        """How many samples each component could not be measured of."""
        return {name: int(mask.sum()) for name, mask in self.is_failed.items()}


@dataclass(frozen=True)
class Subjects:
    """The samples to be measured.

    Attributes:
        groups: P groups of G texts.
        noun: what a person calls one of them.
        places: positions p * G + g of those that are measured, in the order in which they were submitted; None for all.
    """

    groups: Sequence[Sequence[str]]
    noun: str
    places: NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """P and G."""
        return len(self.groups), len(self.groups[0])

    @property
    def measured(self) -> NDArray[np.int64]:
        """Positions of those that are measured."""
        return np.arange(self.shape[0] * self.shape[1]) if self.places is None else self.places


class PendingRewards:
    """Rewards that are being measured; the next batch can be sampled until ``result`` is asked for."""

    def __init__(
        self,
        weights: Mapping[str, float],
        failure: FailureParams,
        *,
        futures: Mapping[str, Future[CollectedRewards]],
        subjects: Subjects,
    ) -> None:
        """Keep what is needed to put the values together."""
        self._weights, self._failure = dict(weights), failure
        self._futures, self._subjects = futures, subjects

    def done(self) -> bool:
        """Whether ``result`` would return at once."""
        return all(future.done() for future in self._futures.values())

    def result(self) -> GroupRewards:
        """Wait for all components and apply the rule for failures to each.

        Raises:
            RewardFailedError: if a component could not be measured and the rule is ``stop``.
            RewardPoolError: if a process cannot be started or the pool was closed.
        """
        measured = {name: future.result() for name, future in self._futures.items()}
        if self._failure.rule == "stop":
            for name, cause in self._first_causes(measured):
                raise RewardFailedError(
                    f"reward {name!r} must score every {self._subjects.noun} under rule 'stop', got no value from {cause}; "
                    "correct the function, or use rule 'exclude'"
                )
        is_failed = {
            name: self._spread(np.isnan(found.values), False) for name, found in measured.items()
        }
        components = {name: self._spread(found.values, np.nan) for name, found in measured.items()}
        # Under "stop" nothing has failed.
        rule: FailureRule = "penalty" if self._failure.rule == "penalty" else "exclude"
        return GroupRewards(
            components={
                name: apply_failure_rule(
                    component,
                    is_failed[name],
                    rule=rule,
                    penalty=self._failure.penalty or 0.0,
                    name=f"reward component {name!r}",
                )
                for name, component in components.items()
            },
            weights=self._weights,
            is_failed=is_failed,
            causes=dict(self._first_causes(measured)),
        )

    def _spread(self, values: NDArray[np.generic], absent: float | bool) -> Tensor:
        """Return [P, G] with the values at the places that were measured."""
        rows, columns = self._subjects.shape
        spread = np.full(rows * columns, absent, dtype=values.dtype)
        spread[self._subjects.measured] = values
        return torch.from_numpy(spread).reshape(rows, columns)

    def _first_causes(self, measured: Mapping[str, CollectedRewards]) -> Iterator[tuple[str, str]]:
        """Yield (component, why) of each component that failed, in the words of its first sample."""
        texts = [text for group in self._subjects.groups for text in group]
        for name, found in measured.items():
            pairs = zip(self._subjects.measured.tolist(), found.causes, strict=True)
            first = next(((place, cause) for place, cause in pairs if cause is not None), None)
            if first is not None:
                yield (
                    name,
                    f"{found.function} on the {self._subjects.noun} {shorten(texts[first[0]])}: {first[1]}",
                )


def try_rewards(
    own: Mapping[str, Measure],
    pool: RewardPool,
    *,
    subjects: Sequence[str],
    references: Sequence[Sequence[str]],
    task: str,
    prompts: Sequence[str] | None = None,
) -> None:
    """Call the rewards of the user's on a few texts of the training data, before anything is trained.

    Raises:
        RewardFailedError: for a reward that scores none of them.
        RewardPoolError: for one that gives another value for the same text, or cannot be imported.
    """
    for name, measure in own.items():
        found = pool.submit(measure, subjects, references, prompts).result()
        if len(subjects) and all(cause is not None for cause in found.causes):
            raise RewardFailedError(
                f"reward {name!r} must score texts of the training data, got no value for any of {len(subjects)} from "
                f"{measure.function}, the first one {shorten(subjects[0])}: {found.causes[0]}; correct the function, or take "
                f"it out of {task}.rewards.own"
            )


def check_groups(groups: Sequence[Sequence[object]], *, name: str) -> None:
    """Refuse groups of different or no size, and no group at all.

    Raises:
        ValueError: then; ``name`` says of what.
    """
    sizes = sorted({len(group) for group in groups})
    if len(sizes) != 1 or not sizes[0]:
        raise ValueError(
            f"{name} must be groups of one size, got sizes {sizes}; sample the same number for every prompt"
        )
