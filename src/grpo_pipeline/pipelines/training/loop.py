"""Run the registered step pipeline many times: ``next_state`` becomes ``state``, values travel by reference.

The fold calls the nodes of ``pipelines.step`` themselves, in their topological order, so that what Kedro-Viz shows and what
the probe executes is what trains.
"""

import logging
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.core.training.optim import advance
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines.step import recipe
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.step.experience import Experience
from grpo_pipeline.pipelines.step.in_micro_batches import InMicroBatches
from grpo_pipeline.pipelines.step.parts.replay import Replayed, nothing_replayed
from grpo_pipeline.pipelines.step.pieces import attach_micro_batch, cut_experience, join
from grpo_pipeline.pipelines.step.wire import ALGORITHM, TRAINING, fold
from grpo_pipeline.rewards.second_calls import LATE
from grpo_pipeline.tasks.base import Task

Metrics = dict[str, float]
# Over the update epochs of a batch a metric is averaged, except where the worst one matters.
WORST = {"policy/ratio_max"}


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
        arm = Parts.of(algorithm)
        self._collect, self._learn, self._move = (
            table(arm).nodes for table in (recipe.collect, recipe.learn, recipe.move)
        )
        self._task, self._algorithm, self._training = task, algorithm, training

    def __call__(self, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        """Collect experience from one batch and update ``update_epochs`` times; returns the next state and its metrics."""
        done = self.run(state, batch, nothing_replayed())
        return done.state, done.metrics

    def run(self, state: TrainState, batch: Any, replayed: Replayed) -> StepResult:
        """Do the same with stored groups at some places of the batch, and return the experience, too."""
        start, late = time.perf_counter(), LATE.total
        algorithm, training, task = self._algorithm, self._training, self._task
        size = training.micro_batch_size
        constants = {ALGORITHM: algorithm, TRAINING: training, "batch": batch, "replayed": replayed}
        reader = task if size is None else cast(Task, InMicroBatches(task, size))
        collected = fold(self._collect, {**constants, "state": state, "task": reader})
        experience: Experience = collected["experience"]
        pieces, measured = cut_experience(algorithm, training, task, experience), []
        for update_epoch in range(algorithm.update_epochs):
            values = {**constants, "task": task, "state": state, "update_epoch": update_epoch}
            reports = []
            for piece in pieces:  # the graph of one is gone before the next one begins
                piece = attach_micro_batch(task, state, piece, update_epoch)
                reports.append(fold(self._learn, values | {"experience": piece})["report"])
            moved = fold(self._move, values | {"experience": experience, "report": join(reports)})
            state = moved["next_state"]
            measured.append(moved["step_metrics"])
            if update_epoch == 0:
                check_first_ratio(measured[0], algorithm, training, task, step=state.step)
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
        if LATE.total > late:
            metrics["reward/late_calls"] = float(LATE.total - late)
        return StepResult(advance(state), metrics, experience)


def count_cost(
    algorithm: AlgorithmParams, rollouts: Rollouts, resampling: Mapping[str, float]
) -> Metrics:
    """Count the samples that a step has drawn, and those and the parts of those whose reward it has measured.

    Groups that were drawn again count each time, and so does each part of a sample that credit per decision asks for. An arm
    that draws nothing costs nothing.

    Args:
        algorithm: of the arm.
        rollouts: of the step, [P, G, L].
        resampling: what drawing tied groups again has cost; empty where that is off.
    """
    prompts, group_size, length = rollouts.actions.shape
    if algorithm.proposal == "none":
        return {"samples": 0.0, "reward_calls": 0.0}
    retries = resampling.get("reward/retries", 0.0)
    drawn = prompts * group_size
    # Each decision is left out, or taken in, once: L parts beside the whole sample.
    parts = 1 + (length if algorithm.credits_decisions else 0)
    # To find the tied groups, all are measured as they are drawn, and the final ones once more.
    measured = 1 if algorithm.dynamic_sampling is None else 2 + retries
    return {
        "samples": float(drawn * (1 + retries)),
        "reward_calls": float(drawn * parts * measured),
    }


FRAME_ROWS = 6


class Film:
    """The frames of one arm's training: how a few validation examples look to the policy, from the start to the end.

    There are at most ``animation_frames`` of them, evenly spaced, the first before the first step and the last at the end. A
    checkpoint holds the frames until then, so that a resumed run has those before it.
    """

    def __init__(
        self,
        task: Task,
        data: Any,
        training: TrainingParams,
        state: TrainState,
        before: Mapping[str, Tensor],
    ) -> None:
        """Take the first frame; of a run that goes on, begin with the frames ``before``."""
        self.frames = dict(before)
        self._task, self._data = task, data
        # From the end, so that a single frame shows what was trained.
        moments = np.linspace(state.total_steps, 0, training.animation_frames)
        self._moments = {int(moment) for moment in moments}
        rows = task.rows(data, "val")
        order = numpy_generator(state.generator_seed, Stream.FRAME_ROWS).permutation(rows)
        self._rows = np.sort(order[:FRAME_ROWS])
        if state.step == 0:
            self.take(state)

    @torch.no_grad()
    def take(self, state: TrainState) -> None:
        """Take a frame, if it is time for one; every global random stream stays as it was."""
        if state.step not in self._moments or not len(self._rows):
            return
        places = {parameter.device for parameter in state.policy.parameters()}
        with torch.random.fork_rng([place for place in places if place.type == "cuda"]):
            frame = self._task.training_frame(
                state.policy, self._data, self._rows, seed=state.generator_seed
            )
        self.frames |= {f"{state.step:09d}/{name}": shown for name, shown in frame.items()}


# How far the mean ratio of a batch's first update may be from 1: by rounding alone, in float32 and where products are coarser.
RATIO_ROUNDING, COARSE_ROUNDING = 1e-5, 2e-2
# Decisions whose rounding a joint ratio may add up.
JOINT_DECISIONS = 10


def check_first_ratio(
    metrics: Mapping[str, Tensor | float],
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    *,
    step: int,
) -> None:
    """Stop where the first update of a batch does not begin at the policy that drew the batch.

    The ratio is 1 there in every arm that has one: stored groups are scored anew before it, and no other proposal has a ratio.

    Args:
        metrics: of the first update epoch.
        algorithm: a ``joint`` ratio multiplies those of all decisions, and their rounding.
        training: bfloat16, and TF32 on CUDA, round more.
        task: named in the error.
        step: number of the batch.

    Raises:
        ValueError: naming the ratio, the limit and where to look.
    """
    ratio = float(metrics.get("policy/ratio_mean", 1.0))
    is_coarse = training.precision == "bf16" or (
        training.float32_products == "tf32" and task.device.type == "cuda"
    )
    limit = COARSE_ROUNDING if is_coarse else RATIO_ROUNDING
    if algorithm.policy_loss is not None and algorithm.policy_loss.ratio_level == "joint":
        limit *= JOINT_DECISIONS
    if not abs(ratio - 1.0) <= limit:
        kind = type(task).__name__
        raise ValueError(
            f"policy/ratio_first must be 1 within {limit:g} at step {step} of {task.name}, got {ratio:.6f}; {kind}.score must "
            f"give the log-probabilities that {kind}.sample drew with (temperature, mask, no dropout): call "
            "grpo_pipeline.testing.check_task(task, data)"
        )


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


def steps_per_epoch(n_rows: int, batch_size: int) -> int:
    """Return the number of whole batches in one pass, at least one; the rest of a shuffled pass is left out."""
    return max(1, n_rows // batch_size)


def rows_of_step(rows: np.ndarray, step: int, *, batch_size: int, seed: int) -> np.ndarray:
    """Return the rows of a batch: a function of (seed, step) alone, so that a resumed run sees the same order."""
    per_epoch = steps_per_epoch(len(rows), batch_size)
    epoch, position = divmod(step, per_epoch)
    order = numpy_generator(seed, Stream.ORDER, epoch).permutation(len(rows))
    return rows[order[position * batch_size : (position + 1) * batch_size]]


def merge_metrics(measured: Sequence[Mapping[str, Tensor | float]]) -> Metrics:
    """Average the metrics of the update epochs; ``policy/ratio_first`` keeps the first ratio, exactly 1 when all is well."""
    numbers = [to_floats(metrics) for metrics in measured]
    names = list(dict.fromkeys(name for metrics in numbers for name in metrics))
    found = {name: [metrics[name] for metrics in numbers if name in metrics] for name in names}
    merged = {
        name: max(values) if name in WORST else sum(values) / len(values)
        for name, values in found.items()
    }
    if "policy/ratio_mean" in numbers[0]:
        merged["policy/ratio_first"] = numbers[0]["policy/ratio_mean"]
    return merged


def to_floats(metrics: Mapping[str, Tensor | float]) -> Metrics:
    """Return plain numbers; one transfer from the device for all tensors."""
    tensors = {name: value for name, value in metrics.items() if isinstance(value, Tensor)}
    numbers = (
        torch.stack([t.detach().double() for t in tensors.values()]).tolist() if tensors else []
    )
    return {name: float(value) for name, value in metrics.items() if name not in tensors} | dict(
        zip(tensors, numbers, strict=True)
    )


def _peak_memory_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    # ru_maxrss is in KiB on Linux and in bytes on macOS.
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
