"""Draw the attention task's figures and render its page, as nodes of the reporting pipeline."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting import tables
from grpo_pipeline.pipelines.reporting.data_section import data_parts
from grpo_pipeline.pipelines.reporting.page import Page, configuration_text, plain, render
from grpo_pipeline.pipelines.reporting.reward_section import reward_section
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.attention.pipelines.image_sheet import image_sheet
from grpo_pipeline.tasks.attention.pipelines.roc_curves import roc
from grpo_pipeline.tasks.attention.pipelines.training_animation import still_of, training_animation

QUARANTINE_ROWS = 50

PAGE = Path(__file__).with_name("page.html")

PROPOSALS = {
    "uniform": "drawn uniformly",
    "policy": "of its own policy, which starts as the others' do",
    "oracle": "drawn from the lesion outlines",
    "none": "left out",
}
"""Where the points of a control come from in training, by ``algorithm.proposal``."""

PARTS = (
    *("comparison", "answer", "learning_curves", "roc", "image_sheet", "animation"),
    *("data_report", "quarantine", "examples"),
    *("reward_audit", "reward_audit_figure"),
)


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


def proposal_of(arm: str, parameters: Mapping[str, Any], params: EvaluationParams) -> str:
    """Return where an arm's points came from in training, as ``AlgorithmParams`` fills it in."""
    sections = plain(parameters.get(params.task, parameters))
    algorithm = sections.get(arm, {}).get("algorithm", {})
    usual = "policy" if (algorithm.get("losses") or {}).get("policy") else "uniform"
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
