"""Wire the molecule task's own figures and its page.

RDKit is an extra: what needs it is imported when a node runs, so that the registry opens without it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from kedro.pipeline import Node
from markupsafe import Markup
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting import tables
from grpo_pipeline.pipelines.reporting.data_section import data_parts
from grpo_pipeline.pipelines.reporting.page import Page, configuration_text, render
from grpo_pipeline.pipelines.reporting.reward_section import reward_section
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.molecules.pipelines.arm_drawings import draw_arms
from grpo_pipeline.tasks.molecules.pipelines.comparison_table import beside_table
from grpo_pipeline.tasks.molecules.pipelines.distributions import molecule_distributions
from grpo_pipeline.tasks.molecules.pipelines.property_window import window_document, window_table
from grpo_pipeline.tasks.molecules.pipelines.sampled_molecules import (
    SampledMolecules,
    gather_molecules,
)
from grpo_pipeline.tasks.molecules.pipelines.validity_by_size import validity_by_size
from grpo_pipeline.tasks.molecules.rewards.params import MoleculeReward

QUARANTINE_ROWS = 50
PAGE = Path(__file__).with_name("page.html")

PARTS = (
    *(
        "comparison",
        "answer",
        "learning_curves",
        "distributions",
        "validity",
        "logp_window",
        "data_report",
        "quarantine",
        "examples",
    ),
    *("reward_audit", "reward_audit_figure"),
)
DRAWINGS = [f"{choice}_{when}" for choice in ("best", "random") for when in ("before", "after")]


def draw_molecules(params: EvaluationParams, **predictions: pd.DataFrame) -> dict[str, str]:
    """Draw the best and some random molecules of each arm, before and after training; a keyword argument per arm."""
    return draw_arms(predictions, params)


def draw_distributions(
    params: EvaluationParams, rewards: MoleculeReward, **predictions: pd.DataFrame
) -> Figure:
    """Draw the atoms, bonds and properties of the molecules; a keyword argument per arm."""
    return molecule_distributions(_gather(params, predictions), window=rewards.logp)


def draw_validity(params: EvaluationParams, **predictions: pd.DataFrame) -> Figure:
    """Draw the share of valid graphs by size; a keyword argument per arm, its prediction rows."""
    return validity_by_size(_gather(params, predictions))


def measure_window(
    params: EvaluationParams, rewards: MoleculeReward, **predictions: pd.DataFrame
) -> dict[str, Any]:
    """Measure how often logP lies in the reward's window, compared with the start; a keyword argument per arm."""
    return window_document(
        _gather(params, predictions), name="logp", window=rewards.logp, start=params.chance_rule
    )


def render_molecules(
    params: EvaluationParams,
    comparison: Mapping[str, Any],
    answer: Mapping[str, Any],
    predictions: pd.DataFrame,
    logp_window: Mapping[str, Any],
    learning_curves: Mapping[str, bytes],
    distributions: bytes,
    validity: bytes,
    reward_audit: Mapping[str, Any],
    reward_audit_figure: bytes,
    data_report: Mapping[str, Any],
    quarantine: pd.DataFrame,
    examples: Any,
    parameters: Mapping[str, Any],
    **drawings: str,
) -> str:
    """Render all results as a self-contained HTML page; ``drawings`` are those of ``draw_molecules``."""
    suite = build_suite(params.task, params.metric_options)
    metrics = suite.for_names(comparison["arms"][comparison["control"]]["metrics"]).metrics
    words = find_task(params.task).words
    parts = {
        "arms": tables.arms_table(comparison, metrics, words=words),
        **tables.rivals_parts(comparison, suite, words=words),
        "beside": beside_table(comparison, metrics, predictions),
        "window": window_table(logp_window, title="logP"),
        "learning_curves": learning_curves,
        "distributions": distributions,
        "validity": validity,
        # Written by RDKit and by draw_grid, which escapes every text that is not its own.
        "drawings": {name: Markup(drawing) for name, drawing in drawings.items()},
        "reward": reward_section(reward_audit),
        "reward_figure": reward_audit_figure,
        **data_parts(examples, task=params.task, cluster=params.cluster),
        "data": tables.facts_table("Data report", data_report),
        "quarantine": tables.frame_table(
            "Refused molecules and repetitions", quarantine, limit=QUARANTINE_ROWS
        ),
    }
    configuration = configuration_text(parameters, params.task)
    return render(Page(PAGE, comparison, answer, suite.unit.noun, configuration, parts))


def _gather(params: EvaluationParams, predictions: Mapping[str, pd.DataFrame]) -> SampledMolecules:
    return gather_molecules(
        predictions, params, suite=build_suite(params.task, params.metric_options)
    )


def create_report(arms: Sequence[str], shown: str) -> list[Node]:
    """Build the nodes of these arms' page; ``shown`` is the arm whose rows stand beside the training molecules."""
    params, rewards = (
        {"params": "params:molecules.evaluation"},
        {"rewards": "params:molecules.reward"},
    )
    predictions = {arm: f"molecules.{arm}.predictions" for arm in arms}
    drawings = {f"{arm}_{what}": f"molecules.{arm}.{what}" for arm in arms for what in DRAWINGS}
    page = {"predictions": f"molecules.{shown}.predictions", "parameters": "parameters"}
    return [
        Node(
            draw_molecules,
            inputs=params | predictions,
            outputs=drawings,
            name="draw_molecules",
            namespace="molecules.report",
        ),
        Node(
            draw_distributions,
            inputs=params | rewards | predictions,
            outputs="molecules.distributions",
            name="draw_distributions",
            namespace="molecules.report",
        ),
        Node(
            draw_validity,
            inputs=params | predictions,
            outputs="molecules.validity",
            name="draw_validity",
            namespace="molecules.report",
        ),
        Node(
            measure_window,
            inputs=params | rewards | predictions,
            outputs="molecules.logp_window",
            name="measure_window",
            namespace="molecules.report",
        ),
        Node(
            render_molecules,
            inputs=params | {name: f"molecules.{name}" for name in PARTS} | page | drawings,
            outputs="molecules.report",
            name="render_molecules",
            namespace="molecules.report",
        ),
    ]
