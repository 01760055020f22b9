"""Nodes of the dialogue task's report."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from plotly import graph_objects as go

from grpo_pipeline.pipelines.evaluation.params import EvaluationParams
from grpo_pipeline.pipelines.evaluation.suites import build_suite
from grpo_pipeline.pipelines.reporting import tables
from grpo_pipeline.pipelines.reporting.page import Page, configuration_text, render
from grpo_pipeline.pipelines.reporting.reply_table import reply_groups
from grpo_pipeline.pipelines.reporting.reward_section import reward_section
from grpo_pipeline.pipelines.reporting.scores_by_need import scores_by_need
from grpo_pipeline.tasks import find_task

QUARANTINE_ROWS, SHOWN_EXAMPLES = 50, 6


def plot_scores_by_need(params: EvaluationParams, **predictions: pd.DataFrame) -> go.Figure:
    """Draw reward and F1 by what the right reply needs; one keyword argument per arm, its prediction rows."""
    return scores_by_need(predictions, params, suite=build_suite(params.task, params.metric_options))


def render_replies(
    params: EvaluationParams,
    comparison: Mapping[str, Any],
    learning_curves: go.Figure,
    scores_by_need: go.Figure,
    rollouts: pd.DataFrame,
    reward_audit: Mapping[str, Any],
    reward_audit_figure: bytes,
    data_report: Mapping[str, Any],
    token_report: Mapping[str, Any],
    retrieval_report: Mapping[str, Any],
    quarantine: pd.DataFrame,
    parameters: Mapping[str, Any],
) -> str:
    """Put everything on one self-contained HTML page."""
    suite = build_suite(params.task, params.metric_options)
    metrics = suite.for_names(comparison["arms"][comparison["control"]]["metrics"]).metrics
    words = find_task(params.task).words
    parts = {
        "arms": tables.arms_table(comparison, metrics, words=words),
        "baselines": tables.baselines_table(comparison, metrics, words=words),
        "learning_curves": learning_curves,
        "scores_by_need": scores_by_need,
        "replies": reply_groups(rollouts, limit=SHOWN_EXAMPLES),
        "reward": reward_section(reward_audit),
        "reward_figure": reward_audit_figure,
        "data": tables.facts_table("Data report", data_report),
        "retrieval": tables.facts_table("Was the story found that the reply needs?", retrieval_report),
        "tokens": tables.facts_table("Tokens, and what had to be cut", token_report),
        "quarantine": tables.frame_table("Refused entries", quarantine, limit=QUARANTINE_ROWS),
    }
    configuration = configuration_text(parameters, params.task)
    return render(Page("dialogue.html", comparison, suite.unit.noun, configuration, parts))
