"""Run the registered step pipeline many times: ``next_state`` becomes ``state``, values travel by reference.

The fold calls the nodes of ``pipelines.step`` themselves, in their topological order, so that what Kedro-Viz shows and what
the probe executes is what trains.
"""

import logging
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.training.optim import advance
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.step import recipe
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.step.experience import NOTHING_REPLAYED, Experience, Replayed, Report
from grpo_pipeline.pipelines.step.in_micro_batches import InMicroBatches
from grpo_pipeline.pipelines.step.pieces import attach_micro_batch, cut_experience, join
from grpo_pipeline.pipelines.step.wire import ALGORITHM, TRAINING, fold
from grpo_pipeline.pipelines.training.cost import count_cost
from grpo_pipeline.pipelines.training.first_ratio import check_first_ratio
from grpo_pipeline.pipelines.training.step_metrics import Metrics, merge_metrics
from grpo_pipeline.rewards.late_calls import LATE
from grpo_pipeline.tasks.base import Task


@dataclass(frozen=True)
class StepResult:
    """The state after a step, its metrics, and the experience it was made from."""

    state: TrainState
    metrics: Metrics
    experience: Experience


class StepRunner:
    """The step of an arm with its constant inputs bound; call it once per batch."""

    def __init__(self, task: Task, algorithm: AlgorithmParams, training: TrainingParams) -> None:
        """Lay the tables of the arm's step (``step/recipe.py``) out as nodes."""
        self._arm = arm = Parts.of(algorithm)
        self._collect, self._learn, self._move = (
            table(arm).nodes for table in (recipe.collect, recipe.learn, recipe.move)
        )
        self._task, self._algorithm, self._training = task, algorithm, training

    def __call__(self, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        """Collect experience from one batch and update ``update_epochs`` times; returns the next state and its metrics."""
        done = self.run(state, batch)
        return done.state, done.metrics

    def _learn_from(self, piece: Experience, values: Mapping[str, Any]) -> Report:
        """Add up the gradients of a piece of the batch; its graph is gone when the next one begins."""
        attached = attach_micro_batch(self._task, values["state"], piece, values["update_epoch"])
        report: Report = fold(self._learn, {**values, "experience": attached})["report"]
        return report

    def run(
        self, state: TrainState, batch: Any, replayed: Replayed = NOTHING_REPLAYED
    ) -> StepResult:
        """Do the same, with stored groups at some places of the batch, and return the experience, too."""
        start, late = time.perf_counter(), LATE.total
        algorithm, training, task = self._algorithm, self._training, self._task
        size = training.micro_batch_size
        constants = {ALGORITHM: algorithm, TRAINING: training, "batch": batch, "replayed": replayed}
        reader = task if size is None else cast(Task, InMicroBatches(task, size))
        collected = fold(self._collect, {**constants, "state": state, "task": reader})
        experience: Experience = collected["experience"]
        pieces, measured = cut_experience(self._arm, algorithm, training, task, experience), []
        for update_epoch in range(algorithm.update_epochs):
            values = {**constants, "task": task, "state": state, "update_epoch": update_epoch}
            reports = [self._learn_from(piece, values) for piece in pieces]
            moved = fold(self._move, values | {"experience": experience, "report": join(reports)})
            state = moved["next_state"]
            measured.append(moved["step_metrics"])
            if moved.get("stops", False):
                break
            if update_epoch == 0:
                check_first_ratio(
                    measured[0], algorithm, training, task, state.policy, step=state.step
                )
        cost = count_cost(algorithm, experience.rollouts, experience.resampling)
        prompts, group_size = experience.rollouts.actions.shape[:2]
        # An arm that draws nothing reads each prompt once.
        read = prompts * (group_size if cost["samples"] else 1)
        seconds = time.perf_counter() - start
        metrics = merge_metrics(measured) | {
            **cost,
            "step_seconds": seconds,
            "samples_per_second": read / seconds,
            "peak_memory_mb": _peak_memory_mb(experience.rollouts.actions.device),
        }
        if "stops" in moved:
            metrics["policy/updates"] = float(len(measured) - moved["stops"])
        if LATE.total > late:
            metrics["reward/late_calls"] = float(LATE.total - late)
        return StepResult(advance(state), metrics, experience)


@contextmanager
def quiet_nodes() -> Iterator[None]:
    """Mute the INFO line that Kedro writes for every node run: half a millisecond each."""
    logger = logging.getLogger("kedro")
    level = logger.level
    logger.setLevel(max(logging.WARNING, logger.getEffectiveLevel()))
    try:
        yield
    finally:
        logger.setLevel(level)


def _peak_memory_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    # ru_maxrss is in KiB on Linux and in bytes on macOS.
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
