"""Wiring of the reports: metric rows, predictions, samples and comparison -> figures and one page."""

from collections.abc import Sequence

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.data.attention.report import plot_learning_curves
from grpo_pipeline.pipelines.reporting.task_page import report_of
from grpo_pipeline.tasks import find_task


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
        inputs={arm: f"{task}.{arm}.metric_rows" for arm in arms},
        outputs=f"{task}.learning_curves",
        name="plot_learning_curves",
    )
    pages = report_of(task, spec.wiring())
    return Pipeline([curves, *pages(arms, spec.shown_arm or arms[-1])])
