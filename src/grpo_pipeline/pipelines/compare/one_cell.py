"""Train and score one cell with the nodes of an ordinary arm; only the probe is left out."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from grpo_pipeline.core.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.core.weights import ModelWeights
from grpo_pipeline.pipelines.compare.arms import ResolvedArm
from grpo_pipeline.pipelines.compare.kit import Opened
from grpo_pipeline.pipelines.training import nodes

Row = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """What a cell's training leads to: prediction rows of the test split, metrics by step, final weights."""

    predictions: pd.DataFrame
    metric_rows: list[Row]
    weights: ModelWeights


def train_cell(arm: ResolvedArm, opened: Opened, *, seed: int) -> Trained:
    """Build, train, export and predict, as ``pipelines/training`` wires it."""
    task, data = opened.task, opened.data
    state = nodes.build_state(arm.algorithm, arm.training, seed, task, data)
    nothing = NoCheckpoint("a cell is trained from its start")
    rows: list[Row] = []
    checkpoint: Checkpoint | NoCheckpoint = nothing
    for some, saved in nodes.train(arm.algorithm, arm.training, "never", task, data, state, nothing, {}):
        rows += some
        checkpoint = saved if isinstance(saved, Checkpoint) else checkpoint
    weights = nodes.export_model(task, checkpoint)
    predictions, _, _ = nodes.predict(arm.algorithm, arm.training, seed, task, data, weights)
    return Trained(predictions, rows, weights)
