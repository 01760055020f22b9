"""Wiring of the reports: metric rows, predictions, samples and comparison -> figures and one page."""

from collections.abc import Sequence

import pandas as pd
from kedro.pipeline import Node, Pipeline
from plotly import graph_objects as go

from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting.figures import learning_curves
from grpo_pipeline.pipelines.reporting.task_page import report_of
from grpo_pipeline.tasks import find_task


def plot_learning_curves(params: EvaluationParams, **metric_rows: pd.DataFrame) -> go.Figure:
    """Overlay the training metrics of the arms; one keyword argument per arm, its metric rows."""
    return learning_curves(metric_rows, find_task(params.task).curves)


def create_pipeline(task: str, arms: Sequence[str]) -> Pipeline:
    """Draw the figures of a task and put them on ``<task>.report``.

    Args:
        task: prefix of the catalogue names.
        arms: names of the arms, in the order of the report.

    Raises:
        ValueError: if there is no such task.
    """
    spec = find_task(task)
    curves = Node(
        plot_learning_curves,
        inputs={"params": f"params:{task}.evaluation"} | {arm: f"{task}.{arm}.metric_rows" for arm in arms},
        outputs=f"{task}.learning_curves",
        name="plot_learning_curves",
    )
    pages = report_of(task, spec.wiring())
    return Pipeline([curves, *pages(arms, spec.shown_arm or arms[-1])])
