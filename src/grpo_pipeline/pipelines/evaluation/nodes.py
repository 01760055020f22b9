"""Nodes of the evaluation pipeline."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pandas as pd

from grpo_pipeline.pipelines.evaluation.comparison import compare
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.runs.process import run_identity
from grpo_pipeline.statistics.metric import MetricSuite
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.base import Task

# The metrics of a task, found by its name.


def build_suite(task: str, options: Mapping[str, float]) -> MetricSuite:
    """Return the metrics of a task.

    Raises:
        ValueError: if there is no such task.
        pydantic.ValidationError: if an option is unknown to the task.
    """
    suite: MetricSuite = find_task(task).build_suite(options)
    return suite


TRAINING, INSTEAD = "__training", "__instead"


def fit_baselines(params: EvaluationParams, task: Task, data: Any) -> pd.DataFrame:
    """Fit what a user would try instead on the training split; returns its prediction rows on the held-out split.

    Without ``evaluation.baselines`` there are none, and nothing is fitted.

    Raises:
        ValueError: if the task has no baseline of a name.
    """
    if not params.baselines:
        return pd.DataFrame({"rule": []}, dtype=str)
    fit = resolve_name(find_task(params.task).baselines)
    rows: pd.DataFrame = fit(
        task, data, params.baselines, task.rows(data, params.split), seed=params.seed
    )
    return rows


def compare_arms(params: EvaluationParams, commit: str, **tables: pd.DataFrame) -> dict[str, Any]:
    """Compare the arms on the held-out split.

    Args:
        params: names of control, rules and cluster; resamples and seed.
        commit: git commit of the code, or "unknown".
        tables: of each arm ``<arm>``, its prediction rows, and ``<arm>__training``, its metric rows; ``__instead``, the
            prediction rows of ``fit_baselines``, where the task has them.

    Returns:
        The comparison document of docs/metrics.md: values with intervals, paired differences, summary.

    Raises:
        ValueError: if the predictions do not belong together or the control is missing.
    """
    instead = tables.pop(INSTEAD, None)
    predictions = {name: rows for name, rows in tables.items() if not name.endswith(TRAINING)}
    training = {
        name.removesuffix(TRAINING): rows
        for name, rows in tables.items()
        if name.endswith(TRAINING)
    }
    suite = build_suite(params.task, params.metric_options)
    document = compare(
        predictions, params, suite=suite, commit=commit, training=training, instead=instead
    )
    return document | {"run": run_identity()}


def read_commit() -> str:
    """Return the git commit of the code that runs, or "unknown" outside a repository or without git."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return result.stdout.strip() if result.returncode == 0 else "unknown"
