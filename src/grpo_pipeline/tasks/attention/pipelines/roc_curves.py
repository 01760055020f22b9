"""Draw ROC curves of all arms with clustered-bootstrap bands from their predictions."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting.figures import INK, colour_of, plain_axes
from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.alignment import align_arms
from grpo_pipeline.statistics.bootstrap import (
    Estimate,
    cluster_weights,
    describe,
    percentile_interval,
)
from grpo_pipeline.statistics.metric import MetricSuite
from grpo_pipeline.tasks.attention.evaluation.metrics import METRICS

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
    entry = describe(estimate)
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
