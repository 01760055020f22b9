"""Train and score a trial with the nodes of an ordinary arm, without the probe."""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import pandas as pd

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.pipelines.experiments.trials.arms import ResolvedArm
from grpo_pipeline.pipelines.experiments.trials.preparation import Opened, TaskPreparation
from grpo_pipeline.pipelines.training import export, nodes, prediction, start
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.base import Task

Row = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """Result of a trial's training: prediction rows of the scored split, metrics by step, final weights.

    Of a baseline the rows alone.
    """

    predictions: pd.DataFrame
    metric_rows: list[Row]
    weights: ModelWeights | None


def train_trial(
    preparation: TaskPreparation, arm: ResolvedArm, opened: Opened, *, seed: int, split: str
) -> Trained:
    """Build, train, export and predict as ``pipelines/training`` does, or fit the arm's baseline and predict with it."""
    task, data = opened.task, opened.data
    if arm.description.baseline is not None:
        fit = resolve_name(find_task(preparation.task).baselines)
        tested = task.rows(data, split)
        return Trained(fit(task, data, [arm.description.baseline], tested, seed=seed), [], None)
    weights, rows = train_weights(arm.algorithm, arm.training, task, data, seed=seed)
    predictions, _, _ = prediction.predict(
        arm.algorithm, arm.training, seed, task, data, weights, split
    )
    return Trained(predictions, rows, weights)


def train_weights(
    algorithm: AlgorithmParams, training: TrainingParams, task: Task, data: Any, *, seed: int
) -> tuple[ModelWeights, list[Row]]:
    """Build, train and export an arm, or a stage before the arms; returns the final weights and the metrics by step."""
    training = training.model_copy(update={"animation_frames": 0})  # nobody looks at a trial
    state = start.build_state(algorithm, training, seed, task, data)
    nothing = NoCheckpoint("a trial is trained from its start")
    rows: list[Row] = []
    checkpoint: Checkpoint | NoCheckpoint = nothing
    for some, saved in nodes.train(algorithm, training, "never", task, data, state, nothing, {}):
        rows += some
        checkpoint = saved if isinstance(saved, Checkpoint) else checkpoint
    return export.export_model(task, checkpoint), rows
