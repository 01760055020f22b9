"""Wiring of the attention task's own figures and of its page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kedro.pipeline import Node
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.data.attention.image_sheet import (
    image_sheet,
    still_of,
    training_animation,
)
from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting import tables
from grpo_pipeline.pipelines.reporting.data_section import data_parts
from grpo_pipeline.pipelines.reporting.figures import INK, colour_of, plain_axes
from grpo_pipeline.pipelines.reporting.page import Page, configuration_text, plain, render
from grpo_pipeline.pipelines.reporting.reward_section import reward_section
from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.alignment import align_arms
from grpo_pipeline.statistics.bootstrap import (
    Estimate,
    cluster_weights,
    describe,
    percentile_interval,
)
from grpo_pipeline.statistics.metric import MetricSuite
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.attention.evaluation.metrics import METRICS

# Predictions of all arms -> ROC curves with clustered-bootstrap bands.

LEVELS = np.linspace(1.0, 0.0, 101)


def roc(
    arms: Mapping[str, pd.DataFrame], params: EvaluationParams, *, suite: MetricSuite
) -> Figure:
    """Draw sensitivity against 1 - specificity for the own rule of each arm, with pointwise 95% bands.

    Every arm is read on the same resamples of whole clusters as in the comparison. An arm whose split holds a single
    class has no curve and says so.
    """
    tables = align_arms(arms, suite, headline=params.headline_rule, cluster=params.cluster)
    figure = Figure(figsize=(5.6, 5.4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="#999999", linestyle="--", linewidth=1, label="chance")
    colours = colour_of(tables, control=params.control, shown=params.baseline_arm)
    for arm, rules in tables.items():
        rows = rules[params.rule_of(arm)]
        weights = cluster_weights(
            rows[params.cluster], resamples=params.resamples, seed=params.seed
        )
        draw_arm(axes, arm, rows, weights, params=params, colour=colours[arm])
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    axes.set_xlabel("1 - specificity", color=INK)
    axes.set_ylabel("sensitivity", color=INK)
    axes.legend(loc="lower right", fontsize=8, frameon=False, labelcolor=INK)
    plain_axes(axes)
    return figure


def draw_arm(
    axes: Axes,
    arm: str,
    rows: pd.DataFrame,
    weights: np.ndarray,
    *,
    params: EvaluationParams,
    colour: str,
) -> None:
    """Draw the band and the curve of one arm; without an interval for its AUROC it has no band."""
    scores, is_positive = rows["prob"].to_numpy(dtype=np.float64), rows["label"].to_numpy() == 1
    weights = np.vstack([np.ones(len(rows)), weights])
    areas = weighted.auroc(scores, is_positive, weights)
    if np.isnan(areas[0]):
        axes.plot([], [], color=colour, label=f"{arm}: undefined (a single class)")
        return
    estimate = Estimate(
        value=float(areas[0]),
        resamples=areas[1:],
        n=len(rows),
        reason="a single class",
        clusters=METRICS["auroc"].count_clusters(rows, params.cluster),
        bounds=METRICS["auroc"].bounds,
    )
    entry = describe(estimate, max_undefined=params.max_undefined)
    levels = curves(scores, is_positive, weights)
    name = f"{arm}: AUROC {areas[0]:.3f}"
    if entry["ci95"] is not None:
        low, high = entry["ci95"]
        name += f" [{low:.3f}, {high:.3f}]"
        # The pointwise 95% band, low and high, over the resamples that hold both classes.
        limits = np.array([percentile_interval(column) for column in levels[1:].T])
        axes.fill_between(1 - LEVELS, *limits.T, color=colour, alpha=0.15, linewidth=0)
    axes.step(1 - LEVELS, levels[0], where="post", color=colour, linewidth=2, label=name)


def curves(scores: np.ndarray, is_positive: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the sensitivity at each of LEVELS specificities for each resample, [B, 101]."""
    counts = weighted.tally(scores, is_positive, weights)
    return np.stack(
        [weighted.sensitivity_of_tally(counts, level=level) for level in LEVELS], axis=1
    )


# Nodes of the reporting pipeline.

QUARANTINE_ROWS = 50
PAGE = Path(__file__).with_name("page.html")


def plot_roc(params: EvaluationParams, **predictions: pd.DataFrame) -> Figure:
    """Draw the ROC curve of each arm with its band; one keyword argument per arm, its prediction rows."""
    return roc(predictions, params, suite=build_suite(params.task, params.metric_options))


def draw_image_sheet(params: EvaluationParams, showcase: dict[str, np.ndarray]) -> Figure:
    """Draw the showcase cores of the baseline arm with outlines, heatmap and points."""
    return image_sheet(showcase, arm=params.baseline_arm)


def draw_animation(params: EvaluationParams, frames: dict[str, np.ndarray]) -> bytes:
    """Draw the training of the baseline arm as an animated PNG; nothing where no frames were taken."""
    return training_animation(frames, arm=params.baseline_arm)


def render_report(
    params: EvaluationParams,
    comparison: Mapping[str, Any],
    answer: Mapping[str, Any],
    learning_curves: Mapping[str, bytes],
    roc: bytes,
    image_sheet: bytes,
    animation: bytes,
    reward_audit: Mapping[str, Any],
    reward_audit_figure: bytes,
    data_report: Mapping[str, Any],
    quarantine: pd.DataFrame,
    examples: Any,
    parameters: Mapping[str, Any],
) -> str:
    """Put everything on one self-contained HTML page."""
    known = comparison["arms"][comparison["control"]]["metrics"]
    suite = build_suite(params.task, params.metric_options).for_names(known)
    words = find_task(params.task).words
    parts = {
        "arms": tables.arms_table(comparison, suite.metrics, words=words),
        "baselines": tables.baselines_table(comparison, suite.metrics, words=words),
        **tables.rivals_parts(comparison, suite, words=words),
        "reward": reward_section(reward_audit),
        "reward_figure": reward_audit_figure,
        **data_parts(examples, task=params.task, cluster=params.cluster),
        "data": tables.facts_table("Data report", data_report),
        "quarantine": tables.frame_table("Refused rows", quarantine, limit=QUARANTINE_ROWS),
        "learning_curves": learning_curves,
        "roc": roc,
        "image_sheet": image_sheet,
        "animation": animation or None,
        "still": still_of(animation) if animation else None,
        "outlines": outline_sentence(
            data_report,
            [arm for arm in comparison["arms"] if proposal_of(arm, parameters, params) == "oracle"],
            share=known.get("outlined_share", {}).get("value") or 0.0,
        ),
        "control_points": PROPOSALS[proposal_of(comparison["control"], parameters, params)],
    }
    configuration = configuration_text(parameters, params.task)
    return render(Page(PAGE, comparison, answer, suite.unit.noun, configuration, parts))


PROPOSALS = {
    "uniform": "drawn uniformly",
    "policy": "of its own policy, which starts as the others' do",
    "oracle": "drawn from the lesion outlines",
    "none": "left out",
}
"""Where the points of a control come from in training, by ``algorithm.proposal``."""


def proposal_of(arm: str, parameters: Mapping[str, Any], params: EvaluationParams) -> str:
    """Return where an arm's points came from in training, as ``AlgorithmParams`` fills it in."""
    sections = plain(parameters.get(params.task, parameters))
    algorithm = sections.get(arm, {}).get("algorithm", {})
    usual = "uniform" if algorithm.get("name") == "supervised" else "policy"
    proposal: str = algorithm.get("proposal") or usual
    return proposal


def outline_sentence(
    data_report: Mapping[str, Any], oracle_arms: Sequence[str] = (), *, share: float = 0.0
) -> str:
    """Say what the models have learned from lesion outlines; nothing where the data have none.

    Args:
        data_report: counts of the data.
        oracle_arms: arms whose points in training were drawn from the outlines.
        share: of the training images, whose outline was shown to losses and rewards.
    """
    outlines, bags = (
        int(data_report.get("lesion_masks", 0)),
        int(data_report.get("bags_that_are_the_lesion_outline", 0)),
    )
    usable = int(data_report.get("usable", outlines))
    said = []
    if bags:
        said.append(
            f"In {bags} of {usable} images the lesion outline is the bag mask too: the losses of the decoder and of the heatmap "
            "learned from it, and figures of the heatmap inside the bag are averages over the outline of the test images. This "
            "is no learning from labels of whole images."
        )
    elif share:
        said.append(
            f"The lesion outline of {share:.0%} of the training images was shown to losses and rewards, and of no image below: "
            "this is no learning from labels of whole images."
        )
    if oracle_arms:
        said.append(
            f"The points of {', '.join(oracle_arms)} were drawn from lesion outlines in training."
        )
    if outlines and not said:
        said.append("The lesion outline was never shown to the model.")
    return " ".join(said)


PARTS = (
    *("comparison", "answer", "learning_curves", "roc", "image_sheet", "animation"),
    *("data_report", "quarantine", "examples"),
    *("reward_audit", "reward_audit_figure"),
)


def create_report(arms: Sequence[str], shown: str) -> list[Node]:
    """Return the nodes of these arms' page; ``shown`` is the arm whose cores are drawn."""
    params = {"params": "params:attention.evaluation"}
    return [
        Node(
            plot_roc,
            inputs=params | {arm: f"attention.{arm}.predictions" for arm in arms},
            outputs="attention.roc",
            name="plot_roc",
            namespace="attention.report",
        ),
        Node(
            draw_image_sheet,
            inputs=params | {"showcase": f"attention.{shown}.showcase"},
            outputs="attention.image_sheet",
            name="draw_image_sheet",
            namespace="attention.report",
        ),
        Node(
            draw_animation,
            inputs=params | {"frames": f"attention.{shown}.frames"},
            outputs="attention.animation",
            name="draw_animation",
            namespace="attention.report",
        ),
        Node(
            render_report,
            inputs=params
            | {name: f"attention.{name}" for name in PARTS}
            | {"parameters": "parameters"},
            outputs="attention.report",
            name="render_report",
            namespace="attention.report",
        ),
    ]
