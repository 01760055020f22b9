"""Nodes of the molecule task's report.

RDKit is an extra: what needs it is imported when a node runs, so that the registry opens without it.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.evaluation.params import EvaluationParams
from grpo_pipeline.pipelines.evaluation.suites import build_suite
from grpo_pipeline.pipelines.reporting import tables
from grpo_pipeline.pipelines.reporting.curves_picture import curves_picture
from grpo_pipeline.pipelines.reporting.molecule_distributions import molecule_distributions
from grpo_pipeline.pipelines.reporting.page import Page, configuration_text, render
from grpo_pipeline.pipelines.reporting.property_window import window_document, window_table
from grpo_pipeline.pipelines.reporting.reward_section import reward_section
from grpo_pipeline.pipelines.reporting.sampled_molecules import SampledMolecules, gather_molecules
from grpo_pipeline.pipelines.reporting.training_column import beside_table
from grpo_pipeline.pipelines.reporting.validity_by_size import validity_by_size
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.molecules.reward_params import MoleculeRewardParams

QUARANTINE_ROWS = 50


def draw_molecules(params: EvaluationParams, **predictions: pd.DataFrame) -> dict[str, str]:
    """Draw the best and some random molecules of each arm, before and after training; one keyword argument per arm."""
    from grpo_pipeline.pipelines.reporting.molecule_drawings import draw_arms

    return draw_arms(predictions, params)


def draw_curves(**metric_rows: pd.DataFrame) -> Figure:
    """Draw the training metrics of the arms over each other; one keyword argument per arm, its metric rows."""
    return curves_picture(metric_rows)


def draw_distributions(params: EvaluationParams, rewards: MoleculeRewardParams, **predictions: pd.DataFrame) -> Figure:
    """Draw what molecules are made of and how their properties are distributed; one keyword argument per arm."""
    return molecule_distributions(_gather(params, predictions), window=rewards.logp)


def draw_validity(params: EvaluationParams, **predictions: pd.DataFrame) -> Figure:
    """Draw the share of valid graphs by size; one keyword argument per arm, its prediction rows."""
    return validity_by_size(_gather(params, predictions))


def measure_window(params: EvaluationParams, rewards: MoleculeRewardParams, **predictions: pd.DataFrame) -> dict[str, Any]:
    """Measure how often logP lies in the reward's window, against the start; one keyword argument per arm."""
    return window_document(_gather(params, predictions), name="logp", window=rewards.logp, start=params.chance_rule)


def render_molecules(
    params: EvaluationParams,
    comparison: Mapping[str, Any],
    predictions: pd.DataFrame,
    logp_window: Mapping[str, Any],
    curves: bytes,
    distributions: bytes,
    validity: bytes,
    reward_audit: Mapping[str, Any],
    reward_audit_figure: bytes,
    data_report: Mapping[str, Any],
    quarantine: pd.DataFrame,
    parameters: Mapping[str, Any],
    **drawings: str,
) -> str:
    """Put everything on one self-contained HTML page that runs no script; ``drawings`` are those of ``draw_molecules``."""
    suite = build_suite(params.task, params.metric_options)
    metrics = suite.for_names(comparison["arms"][comparison["control"]]["metrics"]).metrics
    words = find_task(params.task).words
    parts = {
        "arms": tables.arms_table(comparison, metrics, words=words),
        "beside": beside_table(comparison, metrics, predictions),
        "window": window_table(logp_window, title="logP"),
        "curves": curves,
        "distributions": distributions,
        "validity": validity,
        # Written by RDKit and by draw_grid, which escapes every text that is not its own.
        "drawings": {name: Markup(drawing) for name, drawing in drawings.items()},
        "reward": reward_section(reward_audit),
        "reward_figure": reward_audit_figure,
        "data": tables.facts_table("Data report", data_report),
        "quarantine": tables.frame_table("Refused molecules and repetitions", quarantine, limit=QUARANTINE_ROWS),
    }
    configuration = configuration_text(parameters, params.task)
    return render(Page("molecules.html", comparison, suite.unit.noun, configuration, parts))


def _gather(params: EvaluationParams, predictions: Mapping[str, pd.DataFrame]) -> SampledMolecules:
    return gather_molecules(predictions, params, suite=build_suite(params.task, params.metric_options))
