"""Tabulate the policy of an arm, the rules that it is compared with, and the training molecules, side by side."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.reporting.tables import Cell, Table, metric_cell, value_cell
from grpo_pipeline.statistics.metric import Metric
from grpo_pipeline.tasks.molecules.evaluation.metrics import TRAINING

# Metrics with a trivial value on the training molecules.
TRIVIAL = ("novelty", "vun")


def beside_table(
    comparison: Mapping[str, Any], metrics: Mapping[str, Metric], predictions: pd.DataFrame
) -> Table:
    """Tabulate metrics x (policy of the baseline arm, its other rules, the training molecules).

    Args:
        comparison: the comparison document.
        metrics: metrics of the task and of the reward's components.
        predictions: rows of any arm. The rule ``training`` fills the last column, which has no interval, because it is no sample.
    """
    columns = {"policy": comparison["arms"][comparison["baseline_arm"]], **comparison["baselines"]}
    training = predictions[predictions["rule"] == TRAINING]
    rows = [
        [
            metric_cell(metric),
            *(value_cell(column["metrics"][name]) for column in columns.values()),
            training_cell(training, name, metric),
        ]
        for name, metric in metrics.items()
    ]
    heads = ["metric", *columns, f"{len(training)} training molecules"]
    return Table(
        f"{comparison['baseline_arm']} beside what it began with, and what it was shown",
        heads,
        rows,
    )


def training_cell(training: pd.DataFrame, name: str, metric: Metric) -> Cell:
    """Write a metric of the training molecules; empty where it means nothing, such as the distance to themselves."""
    if training.empty or name in TRIVIAL:
        return Cell("")
    rows = training.assign(smiles=training["smiles"].fillna("").astype(str))
    value = float(metric(rows, np.ones((1, len(rows))))[0])
    return Cell(f"{value:.3f}" if np.isfinite(value) else "")
