"""Render the page of a task that has no page of its own, in a layout for every task."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from kedro.pipeline import Node

from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting import tables
from grpo_pipeline.pipelines.reporting.data_section import data_parts
from grpo_pipeline.pipelines.reporting.page import Page, configuration_text, render
from grpo_pipeline.pipelines.reporting.reward_section import reward_section
from grpo_pipeline.tasks import find_task

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
    """Render comparison, curves, samples and the reward audit as a self-contained HTML page."""
    measured = comparison["arms"][comparison["control"]]["metrics"]
    suite = build_suite(params.task, params.metric_options).for_names(measured)
    metrics, words = suite.metrics, find_task(params.task).words
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
    """Build the node of a task's page; ``shown`` is the arm whose samples it shows."""
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
