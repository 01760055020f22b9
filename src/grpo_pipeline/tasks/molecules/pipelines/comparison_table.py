"""Tabulate the policy of one arm, the rules that it is compared with, and the training molecules, side by side."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.reporting.tables import Cell, Table, metric_cell, value_cell
from grpo_pipeline.statistics.metric import Metric
from grpo_pipeline.tasks.molecules.evaluation.metrics import TRAINING

# Known before they are computed: a training molecule is itself.
TRIVIAL = ("novelty", "vun")


def beside_table(
    comparison: Mapping[str, Any], metrics: Mapping[str, Metric], predictions: pd.DataFrame
) -> Table:
    """Return metrics x (policy of the baseline arm, its other rules, the training molecules).

    Args:
        comparison: the comparison document.
        metrics: the task's, with those of the reward's components.
        predictions: rows of any arm; those of the rule ``training`` fill the last column, which has no interval: they are all
            there is.
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
    """Return a metric of the training molecules; empty where they say nothing, as about the distance to themselves."""
    if training.empty or name in TRIVIAL:
        return Cell("")
    rows = training.assign(smiles=training["smiles"].fillna("").astype(str))
    value = float(metric(rows, np.ones((1, len(rows))))[0])
    return Cell(f"{value:.3f}" if np.isfinite(value) else "")
