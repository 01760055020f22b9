"""Wiring of the molecule task's own figures and of its page."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kedro.pipeline import Node
from markupsafe import Markup
from matplotlib.figure import Figure

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.pipelines.data.molecules.figures import (
    SampledMolecules,
    gather_molecules,
    molecule_distributions,
    validity_by_size,
    window_document,
    window_table,
)
from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting import tables
from grpo_pipeline.pipelines.reporting.data_section import data_parts
from grpo_pipeline.pipelines.reporting.page import Page, configuration_text, render
from grpo_pipeline.pipelines.reporting.reward_section import reward_section
from grpo_pipeline.pipelines.reporting.tables import Cell, Table, metric_cell, value_cell
from grpo_pipeline.statistics.metric import Metric
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.molecules.metrics import TRAINING
from grpo_pipeline.tasks.molecules.params import MoleculeRewardParams

# Prediction rows of all arms -> drawings of molecules, before and after training. Needs RDKit.

SHOWN, COLUMNS = 12, 6
TEXTS = ("smiles", "cause")


def draw_arms(arms: Mapping[str, pd.DataFrame], params: EvaluationParams) -> dict[str, str]:
    """Return ``<arm>_<best or random>_<before or after>`` -> one SVG text with SHOWN molecules.

    Before is the chance rule, the model that training began with; after is the headline rule. The random ones are the same
    samples everywhere: same prompt and same noise, so that a place of one grid can be compared with that place of another.

    Args:
        arms: arm -> prediction rows; empty cells of a table from a file are "".
        params: names of the rules; the seed of the choice.
    """
    # Needs RDKit, which the registry opens without.
    from grpo_pipeline.tasks.molecules.graphs.drawings import draw_grid

    rules = {"before": params.chance_rule, "after": params.headline_rule}
    return {
        f"{arm}_{choice}_{when}": draw_grid(rows, columns=COLUMNS)
        for arm, table in arms.items()
        for when, rule in rules.items()
        for choice, rows in choose(rows_of(table, rule), seed=params.seed)
    }


def rows_of(table: pd.DataFrame, rule: str) -> pd.DataFrame:
    """Return a rule's rows by ``sample_id``, with texts where cells are empty."""
    texts = {
        name: table[name].astype(object).fillna("").astype(str) for name in TEXTS if name in table
    }
    rows = table.assign(**texts, sample_id=table["sample_id"].astype(str))
    return rows[rows["rule"] == rule].sort_values("sample_id", kind="stable", ignore_index=True)


def choose(rows: pd.DataFrame, *, seed: int) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the best and some random molecules."""
    from grpo_pipeline.tasks.molecules.graphs.drawings import best_molecules, random_molecules

    yield "best", best_molecules(rows, SHOWN)
    yield (
        "random",
        random_molecules(rows, SHOWN, generator=step_generator(seed, stream=Stream.DRAWINGS)),
    )


# The policy of one arm, the rules that it is compared with, and the training molecules, side by side.

# Known before they are computed: a training molecule is itself.
TRIVIAL = ("novelty", "vun")


def beside_table(
    comparison: Mapping[str, Any], metrics: Mapping[str, Metric], predictions: pd.DataFrame
) -> Table:
    """Return metrics x (policy of the baseline arm, its other rules, the training molecules).

    Args:
        comparison: the comparison document.
        metrics: the task's, with those of the reward's components.
        predictions: rows of any arm; those of the rule ``training`` fill the last column, which has no interval: they are all
            there is.
    """
    columns = {"policy": comparison["arms"][comparison["baseline_arm"]], **comparison["baselines"]}
    training = predictions[predictions["rule"] == TRAINING]
    rows = [
        [
            metric_cell(metric),
            *(value_cell(column["metrics"][name]) for column in columns.values()),
            training_cell(training, name, metric),
        ]
        for name, metric in metrics.items()
    ]
    heads = ["metric", *columns, f"{len(training)} training molecules"]
    return Table(
        f"{comparison['baseline_arm']} beside what it began with, and what it was shown",
        heads,
        rows,
    )


def training_cell(training: pd.DataFrame, name: str, metric: Metric) -> Cell:
    """Return a metric of the training molecules; empty where they say nothing, as about the distance to themselves."""
    if training.empty or name in TRIVIAL:
        return Cell("")
    rows = training.assign(smiles=training["smiles"].fillna("").astype(str))
    value = float(metric(rows, np.ones((1, len(rows))))[0])
    return Cell(f"{value:.3f}" if np.isfinite(value) else "")


# Nodes of the molecule task's report.
#
# RDKit is an extra: what needs it is imported when a node runs, so that the registry opens without it.

QUARANTINE_ROWS = 50
PAGE = Path(__file__).with_name("page.html")


def draw_molecules(params: EvaluationParams, **predictions: pd.DataFrame) -> dict[str, str]:
    """Draw the best and some random molecules of each arm, before and after training; one keyword argument per arm."""
    return draw_arms(predictions, params)


def draw_distributions(
    params: EvaluationParams, rewards: MoleculeRewardParams, **predictions: pd.DataFrame
) -> Figure:
    """Draw what molecules are made of and how their properties are distributed; one keyword argument per arm."""
    return molecule_distributions(_gather(params, predictions), window=rewards.logp)


def draw_validity(params: EvaluationParams, **predictions: pd.DataFrame) -> Figure:
    """Draw the share of valid graphs by size; one keyword argument per arm, its prediction rows."""
    return validity_by_size(_gather(params, predictions))


def measure_window(
    params: EvaluationParams, rewards: MoleculeRewardParams, **predictions: pd.DataFrame
) -> dict[str, Any]:
    """Measure how often logP lies in the reward's window, against the start; one keyword argument per arm."""
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
    """Put everything on one self-contained HTML page that runs no script; ``drawings`` are those of ``draw_molecules``."""
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


def create_report(arms: Sequence[str], shown: str) -> list[Node]:
    """Return the nodes of these arms' page; ``shown`` is the arm whose rows stand beside the training molecules."""
    params, rewards = (
        {"params": "params:molecules.evaluation"},
        {"rewards": "params:molecules.rewards"},
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
