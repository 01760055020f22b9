"""Wiring of the reports: metric rows, predictions, samples and comparison -> figures and one page."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from kedro.pipeline import Node, Pipeline
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.evaluation.nodes import build_suite
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting import tables
from grpo_pipeline.pipelines.reporting.data_section import data_parts
from grpo_pipeline.pipelines.reporting.figures import REWARD, colour_of, learning_curves
from grpo_pipeline.pipelines.reporting.page import Page, configuration_text, render
from grpo_pipeline.pipelines.reporting.reward_section import reward_section
from grpo_pipeline.tasks import find_task

LATE_CALLS = "reward/late_calls"


def plot_learning_curves(
    params: EvaluationParams, **metric_rows: pd.DataFrame
) -> dict[str, Figure]:
    """Overlay the training metrics of the arms; one keyword argument per arm, its metric rows."""
    colours = colour_of(metric_rows, control=params.control, shown=params.baseline_arm)
    titles = dict(find_task(params.task).curves)
    if late := late_calls(metric_rows):
        titles |= {REWARD: f"Reward (calls that ran out of time: {late})"}
    return learning_curves(metric_rows, titles, colours=colours)


def late_calls(metric_rows: Mapping[str, pd.DataFrame]) -> str:
    """Return how many calls of rewards ran out of time in the training of each arm; empty where none did."""
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


# The page of a task that has none of its own: what every task has, in one layout.

SAMPLES = 30


def render_task(
    params: EvaluationParams,
    comparison: Mapping[str, Any],
    answer: Mapping[str, Any],
    learning_curves: Mapping[str, bytes],
    rollouts: pd.DataFrame,
    reward_audit: Mapping[str, Any],
    reward_audit_figure: bytes,
    examples: Any,
    parameters: Mapping[str, Any],
) -> str:
    """Put comparison, curves, samples and the reward's audit on one self-contained HTML page."""
    suite, words = build_suite(params.task, params.metric_options), find_task(params.task).words
    metrics = suite.for_names(comparison["arms"][comparison["control"]]["metrics"]).metrics
    parts = {
        "words": words,
        "arms": tables.arms_table(comparison, metrics, words=words),
        "baselines": tables.baselines_table(comparison, metrics, words=words),
        **tables.rivals_parts(comparison, suite, words=words),
        "learning_curves": learning_curves,
        "samples": tables.frame_table(f"Samples of {params.baseline_arm}", rollouts, limit=SAMPLES),
        "reward": reward_section(reward_audit),
        "reward_figure": reward_audit_figure,
        **data_parts(examples, task=params.task, cluster=params.cluster),
    }
    return render(
        Page(
            "task.html",
            comparison,
            answer,
            suite.unit.noun,
            configuration_text(parameters, params.task),
            parts,
        )
    )


def create_report(task: str, arms: Sequence[str], shown: str) -> list[Node]:
    """Return the node of a task's page; ``shown`` is the arm whose samples it holds."""
    del arms
    named = {
        name: f"{task}.{name}"
        for name in (
            "comparison",
            "answer",
            "learning_curves",
            "reward_audit",
            "reward_audit_figure",
            "examples",
        )
    }
    inputs = {
        "params": f"params:{task}.evaluation",
        **named,
        "rollouts": f"{task}.{shown}.rollouts",
        "parameters": "parameters",
    }
    return [
        Node(
            render_task,
            inputs=inputs,
            outputs=f"{task}.report",
            name="render_task",
            namespace=f"{task}.report",
        )
    ]
