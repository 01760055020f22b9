"""Predictions of all arms -> bars of reward and F1 by what the right reply needs, with intervals."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from grpo_pipeline.pipelines.evaluation.alignment import align_arms
from grpo_pipeline.pipelines.evaluation.bootstrap import cluster_weights, percentile_interval
from grpo_pipeline.pipelines.evaluation.params import EvaluationParams
from grpo_pipeline.pipelines.reporting.learning_curves import style
from grpo_pipeline.pipelines.reporting.palette import colour_of
from grpo_pipeline.tasks.metric import Metric, MetricSuite

PANELS = ("reward", "f1")
NEEDS = ("persona", "story", "none", "unknown")
START_COLOUR = "#999999"


def scores_by_need(arms: Mapping[str, pd.DataFrame], params: EvaluationParams, *, suite: MetricSuite) -> go.Figure:
    """Draw reward and F1 of the headline rule of each arm, and of the chance rule of the baseline arm, by ``needs``.

    Every bar is read on the same resamples of whole clusters as in the comparison; a metric without an interval (one
    cluster alone needs it) has a bar without one.
    """
    tables = align_arms(arms, suite, headline=params.headline_rule, cluster=params.cluster)
    rows = {arm: rules[params.headline_rule] for arm, rules in tables.items()}
    before = tables[params.baseline_arm].get(params.chance_rule)
    shown = ({params.chance_rule: before} if before is not None else {}) | rows
    colours = {params.chance_rule: START_COLOUR} | colour_of(rows)
    clusters = next(iter(rows.values()))[params.cluster]
    weights = cluster_weights(clusters, resamples=params.resamples, seed=params.seed)
    figure = make_subplots(1, len(PANELS), subplot_titles=[suite.metrics[name].title for name in PANELS])
    for place, name in enumerate(PANELS):
        for arm, table in shown.items():
            bar = bars(suite.metrics[name], table, weights, arm=arm, colour=colours[arm]).update(showlegend=place == 0)
            figure.add_trace(bar, 1, place + 1)
    figure.update_xaxes(title="what the right reply needs")
    return style(figure, height=420).update_layout(barmode="group")


def bars(metric: Metric, rows: pd.DataFrame, weights: np.ndarray, *, arm: str, colour: str) -> go.Bar:
    """Return one arm's bars of one metric."""
    needs = [name for name in NEEDS if (rows["needs"] == name).any()]
    found = [measure(metric, rows, weights, rows["needs"].to_numpy() == name) for name in needs]
    heights = [value for value, _, _ in found]
    return go.Bar(
        x=[f"{name} ({int((rows['needs'] == name).sum())})" for name in needs],
        y=heights,
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [high - value for value, _, high in found],
            "arrayminus": [value - low for value, low, _ in found],
        },
        name=arm,
        legendgroup=arm,
        marker={"color": colour},
    )


def measure(metric: Metric, rows: pd.DataFrame, weights: np.ndarray, is_in: np.ndarray) -> tuple[float, float, float]:
    """Return a metric of some of the rows with its 95% interval; the interval is the value where there is none."""
    part = rows[is_in]
    value = float(metric(part, np.ones((1, len(part))))[0])
    if part["persona_id"].nunique() < 2:
        return value, value, value
    low, high = percentile_interval(metric(part, weights[:, is_in]))
    return value, low, high
