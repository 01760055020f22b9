"""Train one arm, step by step."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.core.storage.snapshot import snapshot
from grpo_pipeline.core.storage.weights import digest_of_tensors
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.training.best import BestSoFar
from grpo_pipeline.pipelines.training.film import Film
from grpo_pipeline.pipelines.training.first_ratio import check_first_ratio
from grpo_pipeline.pipelines.training.loader import BatchLoader, LoadedBatch
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.order import steps_per_epoch
from grpo_pipeline.pipelines.training.replayed_batches import remember, replay_metrics
from grpo_pipeline.pipelines.training.resuming import (
    resumed,
    run_parameters,
)
from grpo_pipeline.pipelines.training.start import data_of_arm
from grpo_pipeline.pipelines.training.validation import validate
from grpo_pipeline.runs.code_version import code_version
from grpo_pipeline.runs.progress import progress
from grpo_pipeline.tasks.base import Task

Row = dict[str, Any]
logger = logging.getLogger(__name__)


def train(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    resume: Literal["never", "auto"],
    task: Task,
    data: Any,
    state: TrainState,
    resume_from: Checkpoint | NoCheckpoint,
    probe_metrics: Mapping[str, Any],
    sections: Mapping[str, str] | None = None,
) -> Iterator[tuple[list[Row], Checkpoint | Literal[False]]]:
    """Train one arm; yields the metric rows since the last yield, and now and then a checkpoint (else False).

    Args:
        algorithm: what the arm optimises.
        training: the loop.
        resume: "auto" goes on from ``resume_from`` when there is one, "never" starts anew.
        task: the task.
        data: its data.
        state: the start; its modules are trained in place.
        resume_from: the arm's last checkpoint.
        probe_metrics: of the probe, which so comes before the long part; its ratio must be 1.
        sections: "algorithm", "training" and "task" -> their names in the configuration, for what is said about them.

    Raises:
        ValueError: if ``resume`` is unknown, or the first ratio of a batch is not 1.
        CheckpointError: if the checkpoint belongs to other parameters.
    """
    check_first_ratio(probe_metrics or {}, algorithm, training, task, state.policy, step=0)
    sections = sections or {name: f"{task.name}.{name}" for name in ("algorithm", "training")} | {
        "task": task.name
    }
    parameters = run_parameters(algorithm, training, task, data, seed=state.generator_seed)
    kl = algorithm.paid_kl
    is_frozen = kl is not None and kl.reference.update == "frozen"
    # A checkpoint names a reference that never moves instead of holding it.
    frozen_reference = None
    if state.reference is not None and is_frozen:
        frozen_reference = digest_of_tensors(state.reference.state_dict())
    state = resumed(
        state,
        resume_from,
        resume=resume,
        parameters=parameters,
        sections=sections,
        frozen_reference=frozen_reference,
    )
    whole = training.epochs * steps_per_epoch(len(task.rows(data, "train")), training.batch_size)
    if state.total_steps < whole:
        sentence = "%s.max_steps = %d: training ends at step %d of the %d steps of %d epochs"
        numbers = (training.max_steps, state.total_steps, whole, training.epochs)
        logger.info(sentence, sections["training"], *numbers)
    goes_on = state.step > 0 and isinstance(resume_from, Checkpoint)
    before = resume_from.frames if goes_on and isinstance(resume_from, Checkpoint) else {}
    film = Film(task, data, training, state, before)
    best = BestSoFar(task, training, resume_from if goes_on else NoCheckpoint(""))
    data = data_of_arm(algorithm, task, data)
    if state.reference is not None and is_frozen:
        with network_precision(state):
            data = task.with_reference(data, state.reference)
    loop = _Loop(task, data, algorithm, training)
    pending: list[Row] = []
    late = 0.0
    batches = BatchLoader(task, data, algorithm, training, state)
    # <task>.<arm or stage>.algorithm; two arms may have one algorithm.
    arm = sections["algorithm"].split(".")[1:-1] or [algorithm.name]
    with (
        quiet_nodes(),
        progress(state.total_steps - state.step, f"train {task.name}.{arm[0]}") as shown,
        batches,
    ):
        # A generator node must yield at least once, also when a resumed arm has nothing left to do.
        yield [], False
        while state.step < state.total_steps:
            state, rows = loop.step(state, batches.take(state))
            pending += rows
            film.take(state)
            best.take(state, rows)
            # The reward, or the loss of an arm whose samples nobody scored.
            values = (
                {"reward": rows[0]["reward/mean"]}
                if np.isfinite(rows[0]["reward/mean"])
                else {"loss": rows[0]["supervised/loss"]}
            )
            late += rows[0].get("reward/late_calls", 0.0)
            shown.update(1, **values, **({"reward calls out of time": late} if late else {}))
            saves = (
                state.step == state.total_steps or state.step % training.checkpoint_every_steps == 0
            )
            if saves or state.step % training.log_every_steps == 0:
                yield (
                    pending,
                    loop.checkpoint(state, parameters, frozen_reference, film.frames, best)
                    if saves
                    else False,
                )
                pending = []


class _Loop:
    """One arm's loop over the batches: what does not change from step to step."""

    def __init__(
        self, task: Task, data: Any, algorithm: AlgorithmParams, training: TrainingParams
    ) -> None:
        self._task, self._data, self._training = task, data, training
        self._runner = StepRunner(task, algorithm, training)
        self._per_epoch = steps_per_epoch(len(task.rows(data, "train")), training.batch_size)

    def step(self, state: TrainState, loaded: LoadedBatch) -> tuple[TrainState, list[Row]]:
        """Train on the step's batch; returns the next state and its metric rows, a validation row now and then."""
        step, epoch = state.step, state.step // self._per_epoch
        done = self._runner.run(state, loaded.batch, loaded.replayed)
        remember(state, done.experience, loaded.rows, loaded.replayed)
        metrics = done.metrics | replay_metrics(step, done.experience, loaded.replayed)
        measured: list[Row] = [{"step": step, "epoch": epoch, "split": "train", **metrics}]
        state = replace(done.state, epoch=done.state.step // self._per_epoch)
        if (
            state.step == state.total_steps
            or state.step % (self._per_epoch * self._training.validate_every_epochs) == 0
        ):
            found = validate(self._task, self._data, state, self._training)
            measured.append({"step": step, "epoch": epoch, "split": "val", **found})
        return state, measured

    def checkpoint(
        self,
        state: TrainState,
        parameters: Mapping[str, Any],
        frozen_reference: str | None,
        frames: Mapping[str, Tensor],
        best: BestSoFar,
    ) -> Checkpoint:
        """Copy the state with the position in the data order, and the best weights so far."""
        position = {"position": state.step % self._per_epoch, "total_steps": state.total_steps}
        code = code_version()
        return snapshot(
            state,
            progress={**position, **best.scores},
            parameters=parameters,
            code=code,
            frozen_reference=frozen_reference,
            frames=frames,
            best=best.stored(state),
        )
