"""Predictions of all arms -> ROC curves with clustered-bootstrap bands."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from plotly import graph_objects as go

from grpo_pipeline.pipelines.evaluation.alignment import align_arms
from grpo_pipeline.pipelines.evaluation.bootstrap import Estimate, cluster_weights, describe, percentile_interval
from grpo_pipeline.pipelines.evaluation.params import EvaluationParams
from grpo_pipeline.pipelines.reporting.learning_curves import style
from grpo_pipeline.pipelines.reporting.palette import GRID, colour_of, translucent
from grpo_pipeline.tasks import weighted
from grpo_pipeline.tasks.metric import MetricSuite

INSIDE_CORNER = {
    **{"orientation": "v", "xref": "paper", "x": 0.98, "xanchor": "right", "yref": "paper", "y": 0.04, "yanchor": "bottom"},
    **{"bordercolor": GRID, "borderwidth": 1, "bgcolor": "rgba(255, 255, 255, 0.85)"},
}
LEVELS = np.linspace(1.0, 0.0, 101)


def roc(arms: Mapping[str, pd.DataFrame], params: EvaluationParams, *, suite: MetricSuite) -> go.Figure:
    """Draw sensitivity against 1 - specificity for the headline rule of each arm, with pointwise 95% bands.

    Every arm is read on the same resamples of whole clusters as in the comparison. An arm whose split holds a single
    class has no curve and says so.
    """
    tables = align_arms(arms, suite, headline=params.headline_rule, cluster=params.cluster)
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(x=[0, 1], y=[0, 1], mode="lines", name="chance", line={"color": "#999999", "dash": "dash", "width": 1})
    )
    colours = colour_of(tables)
    for arm, rules in tables.items():
        rows = rules[params.headline_rule]
        weights = cluster_weights(rows[params.cluster], resamples=params.resamples, seed=params.seed)
        figure.add_traces(arm_traces(arm, rows, weights, params=params, colour=colours[arm]))
    figure.update_xaxes(title="1 - specificity", range=[-0.01, 1.01], constrain="domain")
    figure.update_yaxes(title="sensitivity", range=[-0.01, 1.01], scaleanchor="x")
    style(figure, height=560)
    return figure.update_layout(legend=INSIDE_CORNER, width=620)


def arm_traces(arm: str, rows: pd.DataFrame, weights: np.ndarray, *, params: EvaluationParams, colour: str) -> list[go.Scatter]:
    """Return the band and the curve of one arm; without an interval for its AUROC it has no band."""
    scores, is_positive = rows["prob"].to_numpy(dtype=np.float64), rows["label"].to_numpy() == 1
    weights = np.vstack([np.ones(len(rows)), weights])
    areas = weighted.auroc(scores, is_positive, weights)
    if np.isnan(areas[0]):
        return [go.Scatter(x=[None], y=[None], name=f"{arm}: undefined (a single class)", line={"color": colour})]
    estimate = Estimate(value=float(areas[0]), resamples=areas[1:], n=len(rows), reason="a single class")
    entry = describe(estimate, clusters=rows[params.cluster].nunique(), max_undefined=params.max_undefined)
    levels = curves(scores, is_positive, weights)
    if entry["ci95"] is None:
        return [curve_trace(levels[0], name=f"{arm}: AUROC {areas[0]:.3f}", arm=arm, colour=colour)]
    low, high = percentile_interval(areas[1:])
    name = f"{arm}: AUROC {areas[0]:.3f} [{low:.3f}, {high:.3f}]"
    return [band_trace(*bands(levels[1:]), arm=arm, colour=colour), curve_trace(levels[0], name=name, arm=arm, colour=colour)]


def curve_trace(sensitivity: np.ndarray, *, name: str, arm: str, colour: str) -> go.Scatter:
    """Return the line of one arm."""
    line = {"color": colour, "width": 2, "shape": "hv"}
    return go.Scatter(x=(1 - LEVELS).tolist(), y=sensitivity.tolist(), mode="lines", name=name, legendgroup=arm, line=line)


def band_trace(low: np.ndarray, high: np.ndarray, *, arm: str, colour: str) -> go.Scatter:
    """Return the shaded band of one arm as a closed outline."""
    there = (1 - LEVELS).tolist()
    return go.Scatter(
        x=there + there[::-1],
        y=high.tolist() + low.tolist()[::-1],
        fill="toself",
        fillcolor=translucent(colour, 0.15),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        legendgroup=arm,
        name=f"{arm}, 95% band",
    )


def curves(scores: np.ndarray, is_positive: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the sensitivity at each of LEVELS specificities for each resample, [B, 101]."""
    counts = weighted.tally(scores, is_positive, weights)
    return np.stack([weighted.sensitivity_of_tally(counts, level=level) for level in LEVELS], axis=1)


def bands(resampled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pointwise 95% band, low and high, over the resamples that hold both classes."""
    limits = np.array([percentile_interval(column) for column in resampled.T])
    return limits[:, 0], limits[:, 1]
