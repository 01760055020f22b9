"""Draw reward and primary score of all arms by the need of the right reply, as bars with intervals."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.evaluation.comparison import estimate
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting.figures import INK, colour_of, plain_axes
from grpo_pipeline.statistics.alignment import align_arms
from grpo_pipeline.statistics.bootstrap import cluster_weights, describe
from grpo_pipeline.statistics.metric import Metric, MetricSuite

NEEDS = ("persona", "story", "none", "unknown")
START_COLOUR = "#999999"


def scores_by_need(
    arms: Mapping[str, pd.DataFrame], params: EvaluationParams, *, suite: MetricSuite
) -> dict[str, Figure]:
    """Draw the reward and the metric that judges, of each arm's headline rule and of the baseline arm's chance rule.

    A group of bars stands for a value of ``needs``. Every bar uses the resamples of whole clusters of the comparison. A metric
    without an interval (a need in a single cluster) has a bar without an interval. Returns file name -> panel.
    """
    suite = suite.for_names(
        dict.fromkeys(name for table in arms.values() for name in table.columns)
    )
    tables = align_arms(arms, suite, headline=params.headline_rule, cluster=params.cluster)
    rows = {arm: rules[params.headline_rule] for arm, rules in tables.items()}
    before = tables[params.baseline_arm].get(params.chance_rule)
    shown = ({params.chance_rule: before} if before is not None else {}) | rows
    arm_colours = colour_of(rows, control=params.control, shown=params.baseline_arm)
    colours = {params.chance_rule: START_COLOUR} | arm_colours
    clusters = next(iter(rows.values()))[params.cluster]
    weights = cluster_weights(clusters, resamples=params.resamples, seed=params.seed)
    return {
        f"{place}_{name}.svg": draw_bars(suite.metrics[name], shown, weights, colours)
        for place, name in enumerate(dict.fromkeys(("reward", *suite.judged)))
    }


def draw_bars(
    metric: Metric,
    shown: Mapping[str, pd.DataFrame],
    weights: np.ndarray,
    colours: Mapping[str, str],
) -> Figure:
    """Draw a metric: a group of bars for each need that occurs, a bar for each arm."""
    needs = [
        name for name in NEEDS if any((rows["needs"] == name).any() for rows in shown.values())
    ]
    figure = Figure(figsize=(5.4, 3.2), layout="constrained")
    axes, width = figure.add_subplot(), 0.8 / len(shown)
    for order, (arm, rows) in enumerate(shown.items()):
        found = [measure(metric, rows, weights, rows["needs"].to_numpy() == name) for name in needs]
        value, low, high = np.array(found).reshape(-1, 3).T
        places = np.arange(len(needs)) + (order - (len(shown) - 1) / 2) * width
        error = {"ecolor": INK, "elinewidth": 1}
        sides = [value - low, high - value]
        axes.bar(places, value, width, color=colours[arm], label=arm, yerr=sides, error_kw=error)
    counts = [int((next(iter(shown.values()))["needs"] == name).sum()) for name in needs]
    labels = [f"{name} ({count})" for name, count in zip(needs, counts, strict=True)]
    axes.set_xticks(range(len(needs)), labels)
    axes.tick_params(labelsize=8, colors=INK)
    axes.set_title(metric.title, fontsize=10, loc="left", color=INK)
    axes.set_xlabel("what the right reply needs", fontsize=8, color=INK)
    plain_axes(axes, grid="y")
    return figure


def measure(
    metric: Metric, rows: pd.DataFrame, weights: np.ndarray, is_in: np.ndarray
) -> tuple[float, float, float]:
    """Compute a metric of some of the rows with its 95% interval; without an interval, both ends are the value."""
    found = estimate(metric, rows[is_in], weights[:, is_in], cluster="subject_id")
    low, high = describe(found, max_undefined=1.0)["ci95"] or (found.value, found.value)
    return found.value, low, high
