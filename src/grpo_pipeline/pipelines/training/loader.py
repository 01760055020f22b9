"""Which stored groups a step replays, and which of its own it stores: the replay of informative groups in the loop."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.step.experience import NOTHING_REPLAYED, Replayed
from grpo_pipeline.pipelines.training.order import rows_of_step
from grpo_pipeline.pipelines.training.replayed_batches import plan_batch
from grpo_pipeline.runs.lookahead import alone, map_ahead
from grpo_pipeline.tasks.base import Task


@dataclass(frozen=True)
class LoadedBatch:
    """A batch, its rows [P], and the stored groups that stand at some of its places."""

    rows: np.ndarray
    replayed: Replayed
    batch: Any


AHEAD = 2
"""Batches that are made, or being made, while a step computes."""


class BatchLoader:
    """Give out the batches of the steps from ``state.step`` to the last one, in order; a context that ends its threads.

    With replay a batch depends on the step before it, and is made when it is asked for.
    """

    def __init__(
        self,
        task: Task,
        data: Any,
        algorithm: AlgorithmParams,
        training: TrainingParams,
        state: TrainState,
    ) -> None:
        self._task, self._data, self._algorithm, self._size = (
            task,
            data,
            algorithm,
            training.batch_size,
        )
        self._rows, self._seed = task.rows(data, "train"), state.generator_seed
        steps = range(state.step, state.total_steps)
        self._ahead: Generator[LoadedBatch, None, None] | None = None
        if algorithm.replay is None:
            make = on_current_device(self._fresh)
            self._ahead = map_ahead(make, steps, workers=1, ahead=AHEAD)

    def take(self, state: TrainState) -> LoadedBatch:
        """Return the batch of ``state.step``; an exception of the thread that made it is raised here."""
        if self._ahead is not None:
            return next(self._ahead)
        rows, replayed = plan_batch(self._algorithm, state, self._rows_of(state.step))
        make = partial(
            make_training_batch, self._task, self._data, seed=self._seed, step=state.step
        )
        return LoadedBatch(rows, replayed, alone(make, rows))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def _rows_of(self, step: int) -> np.ndarray:
        return rows_of_step(self._rows, step, batch_size=self._size, seed=self._seed)

    def _fresh(self, step: int) -> LoadedBatch:
        rows = self._rows_of(step)
        batch = make_training_batch(self._task, self._data, rows, seed=self._seed, step=step)
        return LoadedBatch(rows, NOTHING_REPLAYED, batch)


def make_training_batch(task: Task, data: Any, rows: np.ndarray, *, seed: int, step: int) -> Any:
    """Return the batch of these rows, with the generator of (seed, step)."""
    return task.make_batch(data, rows, generator=step_generator(seed, step, stream=Stream.BATCH))


def on_current_device(function: Callable[[int], LoadedBatch]) -> Callable[[int], LoadedBatch]:
    """Return a function that any thread calls on the caller's CUDA device: which one is current is known per thread."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return function
    device = torch.cuda.current_device()

    def call(step: int) -> LoadedBatch:
        with torch.cuda.device(device):
            return function(step)

    return call
