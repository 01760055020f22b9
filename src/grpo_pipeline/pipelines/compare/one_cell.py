"""Train and score one cell with the nodes of an ordinary arm; only the probe is left out."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from grpo_pipeline.core.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.weights import ModelWeights
from grpo_pipeline.pipelines.compare.arms import ResolvedArm
from grpo_pipeline.pipelines.compare.kit import Opened
from grpo_pipeline.pipelines.training import nodes
from grpo_pipeline.tasks.protocol import Task

Row = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """Result of a trial's training: prediction rows of the test split, metrics by step, final weights."""

    predictions: pd.DataFrame
    metric_rows: list[Row]
    weights: ModelWeights


def train_cell(arm: ResolvedArm, opened: Opened, *, seed: int) -> Trained:
    """Build, train, export and predict, as ``pipelines/training`` wires it."""
    task, data = opened.task, opened.data
    weights, rows = train_weights(arm.algorithm, arm.training, task, data, seed=seed)
    predictions, _, _ = nodes.predict(arm.algorithm, arm.training, seed, task, data, weights)
    return Trained(predictions, rows, weights)


def train_weights(
    algorithm: AlgorithmParams, training: TrainingParams, task: Task, data: Any, *, seed: int
) -> tuple[ModelWeights, list[Row]]:
    """Build, train and export an arm, or a stage before the arms; returns the final weights and the metrics by step."""
    state = nodes.build_state(algorithm, training, seed, task, data)
    nothing = NoCheckpoint("a cell is trained from its start")
    rows: list[Row] = []
    checkpoint: Checkpoint | NoCheckpoint = nothing
    for some, saved in nodes.train(algorithm, training, "never", task, data, state, nothing, {}):
        rows += some
        checkpoint = saved if isinstance(saved, Checkpoint) else checkpoint
    return nodes.export_model(task, checkpoint), rows
