"""Nodes of the reporting pipeline."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from plotly import graph_objects as go

from grpo_pipeline.pipelines.evaluation.params import EvaluationParams
from grpo_pipeline.pipelines.evaluation.suites import build_suite
from grpo_pipeline.pipelines.reporting import tables
from grpo_pipeline.pipelines.reporting.image_sheet import image_sheet
from grpo_pipeline.pipelines.reporting.learning_curves import learning_curves
from grpo_pipeline.pipelines.reporting.page import Page, configuration_text, plain, render
from grpo_pipeline.pipelines.reporting.reward_section import reward_section
from grpo_pipeline.pipelines.reporting.roc import roc
from grpo_pipeline.tasks import find_task

QUARANTINE_ROWS = 50


def plot_learning_curves(**metric_rows: pd.DataFrame) -> go.Figure:
    """Overlay the training metrics of the arms; one keyword argument per arm, its metric rows."""
    return learning_curves(metric_rows)


def plot_roc(params: EvaluationParams, **predictions: pd.DataFrame) -> go.Figure:
    """Draw the ROC curve of each arm with its band; one keyword argument per arm, its prediction rows."""
    return roc(predictions, params, suite=build_suite(params.task, params.metric_options))


def draw_image_sheet(params: EvaluationParams, showcase: dict[str, np.ndarray]) -> Figure:
    """Draw the showcase cores of the baseline arm with outlines, heatmap and points."""
    return image_sheet(showcase, arm=params.baseline_arm)


def render_report(
    params: EvaluationParams,
    comparison: Mapping[str, Any],
    learning_curves: go.Figure,
    roc: go.Figure,
    image_sheet: bytes,
    reward_audit: Mapping[str, Any],
    reward_audit_figure: bytes,
    data_report: Mapping[str, Any],
    quarantine: pd.DataFrame,
    parameters: Mapping[str, Any],
) -> str:
    """Put everything on one self-contained HTML page."""
    suite = build_suite(params.task, params.metric_options)
    words = find_task(params.task).words
    parts = {
        "arms": tables.arms_table(comparison, suite.metrics, words=words),
        "baselines": tables.baselines_table(comparison, suite.metrics, words=words),
        "reward": reward_section(reward_audit),
        "reward_figure": reward_audit_figure,
        "data": tables.facts_table("Data report", data_report),
        "quarantine": tables.frame_table("Refused rows", quarantine, limit=QUARANTINE_ROWS),
        "learning_curves": learning_curves,
        "roc": roc,
        "image_sheet": image_sheet,
        "outlines": outline_sentence(data_report, oracle_arms(comparison["arms"], parameters, task=params.task)),
    }
    configuration = configuration_text(parameters, params.task)
    return render(Page("attention.html", comparison, suite.unit.noun, configuration, parts))


def oracle_arms(arms: Iterable[str], parameters: Mapping[str, Any], *, task: str) -> list[str]:
    """Return the arms that drew from the truth in training (``proposal: oracle``)."""
    sections = plain(parameters.get(task, parameters))
    return [arm for arm in arms if sections.get(arm, {}).get("algorithm", {}).get("proposal") == "oracle"]


def outline_sentence(data_report: Mapping[str, Any], oracle_arms: Sequence[str] = ()) -> str:
    """Say what the models have learned from lesion outlines; nothing where the data have none.

    Args:
        data_report: counts of the data.
        oracle_arms: arms whose points in training were drawn from the outlines.
    """
    outlines, bags = int(data_report.get("lesion_masks", 0)), int(data_report.get("bags_that_are_the_lesion_outline", 0))
    usable = int(data_report.get("usable", outlines))
    drawn = f"The points of {', '.join(oracle_arms)} were drawn from lesion outlines in training." if oracle_arms else ""
    if bags:
        said = (
            f"In {bags} of {usable} images the lesion outline is the bag mask too: the losses of the decoder and of the heatmap "
            "learned from it, and figures of the heatmap inside the bag are averages over the outline of the test images. This "
            "is no learning from labels of whole images."
        )
        return f"{said} {drawn}".strip()
    return drawn or ("The lesion outline was never shown to the model." if outlines else "")
