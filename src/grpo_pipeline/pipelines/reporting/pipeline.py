"""Wire the reports: metric rows, predictions, samples and comparison -> figures and page."""

from collections.abc import Mapping, Sequence
from functools import partial

import pandas as pd
from kedro.pipeline import Node, Pipeline
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting.figures import colour_of
from grpo_pipeline.pipelines.reporting.learning_curves import REWARD, learning_curves
from grpo_pipeline.pipelines.reporting.task_page import create_report
from grpo_pipeline.tasks import find_task

LATE_CALLS = "reward/late_calls"


def plot_learning_curves(
    params: EvaluationParams, **metric_rows: pd.DataFrame
) -> dict[str, Figure]:
    """Draw the training metrics of all arms; each keyword argument holds the metric rows of an arm."""
    colours = colour_of(metric_rows, control=params.control, shown=params.baseline_arm)
    titles = dict(find_task(params.task).curves)
    if late := late_calls(metric_rows):
        titles |= {REWARD: f"Reward (calls that ran out of time: {late})"}
    return learning_curves(metric_rows, titles, colours=colours)


def late_calls(metric_rows: Mapping[str, pd.DataFrame]) -> str:
    """Write how many calls of rewards ran out of time in the training of each arm; empty without such calls."""
    counts = {
        arm: int(rows[LATE_CALLS].sum()) for arm, rows in metric_rows.items() if LATE_CALLS in rows
    }
    return ", ".join(f"{count} in {arm}" for arm, count in counts.items())


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
        inputs={"params": f"params:{task}.evaluation"}
        | {arm: f"{task}.{arm}.metric_rows" for arm in arms},
        outputs=f"{task}.learning_curves",
        name="plot_learning_curves",
        namespace=f"{task}.report",
    )
    pages = getattr(spec.wiring(), "create_report", partial(create_report, task))
    return Pipeline([curves, *pages(arms, spec.shown_arm if spec.shown_arm in arms else arms[-1])])
