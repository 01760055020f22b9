"""Wire the dialogue task's own figures and its page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from kedro.pipeline import Node
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting import tables
from grpo_pipeline.pipelines.reporting.data_section import data_parts
from grpo_pipeline.pipelines.reporting.page import Page, configuration_text, render
from grpo_pipeline.pipelines.reporting.reward_section import reward_section
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.dialogue.pipelines.reply_groups import reply_groups
from grpo_pipeline.tasks.dialogue.pipelines.scores_by_need import scores_by_need

QUARANTINE_ROWS, SHOWN_EXAMPLES = 50, 6
PAGE = Path(__file__).with_name("page.html")

PARTS = (
    *(
        "comparison",
        "answer",
        "learning_curves",
        "scores_by_need",
        "data_report",
        "token_report",
        "retrieval_report",
        "quarantine",
        "examples",
    ),
    *("reward_audit", "reward_audit_figure"),
)


def plot_scores_by_need(params: EvaluationParams, **predictions: pd.DataFrame) -> dict[str, Figure]:
    """Draw reward and primary score by the need of the right reply; a keyword argument per arm, its prediction rows."""
    return scores_by_need(
        predictions, params, suite=build_suite(params.task, params.metric_options)
    )


def render_replies(
    params: EvaluationParams,
    comparison: Mapping[str, Any],
    answer: Mapping[str, Any],
    learning_curves: Mapping[str, bytes],
    scores_by_need: Mapping[str, bytes],
    rollouts: pd.DataFrame,
    reward_audit: Mapping[str, Any],
    reward_audit_figure: bytes,
    data_report: Mapping[str, Any],
    token_report: Mapping[str, Any],
    retrieval_report: Mapping[str, Any],
    quarantine: pd.DataFrame,
    examples: Any,
    parameters: Mapping[str, Any],
) -> str:
    """Render all results as a self-contained HTML page."""
    measured = comparison["arms"][comparison["control"]]["metrics"]
    suite = build_suite(params.task, params.metric_options).for_names(measured)
    metrics = suite.metrics
    words = find_task(params.task).words
    parts = {
        "arms": tables.arms_table(comparison, metrics, words=words),
        "baselines": tables.baselines_table(comparison, metrics, words=words),
        **tables.rivals_parts(comparison, suite, words=words),
        "learning_curves": learning_curves,
        "scores_by_need": scores_by_need,
        "replies": reply_groups(rollouts, limit=SHOWN_EXAMPLES),
        "reward": reward_section(reward_audit),
        "reward_figure": reward_audit_figure,
        **data_parts(examples, task=params.task, cluster=params.cluster),
        "data": tables.facts_table("Data report", data_report),
        "retrieval": tables.facts_table(
            "Was the story found that the reply needs?", retrieval_report
        ),
        "tokens": tables.facts_table("Tokens, and what had to be cut", token_report),
        "quarantine": tables.frame_table("Refused entries", quarantine, limit=QUARANTINE_ROWS),
    }
    configuration = configuration_text(parameters, params.task)
    return render(Page(PAGE, comparison, answer, suite.unit.noun, configuration, parts))


def create_report(arms: Sequence[str], shown: str) -> list[Node]:
    """Build the nodes of these arms' page; ``shown`` is the arm whose replies are shown."""
    params = {"params": "params:dialogue.evaluation"}
    samples = {"rollouts": f"dialogue.{shown}.rollouts", "parameters": "parameters"}
    return [
        Node(
            plot_scores_by_need,
            inputs=params | {arm: f"dialogue.{arm}.predictions" for arm in arms},
            outputs="dialogue.scores_by_need",
            name="plot_scores_by_need",
            namespace="dialogue.report",
        ),
        Node(
            render_replies,
            inputs=params | {name: f"dialogue.{name}" for name in PARTS} | samples,
            outputs="dialogue.report",
            name="render_replies",
            namespace="dialogue.report",
        ),
    ]
