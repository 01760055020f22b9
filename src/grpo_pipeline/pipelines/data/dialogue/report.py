"""Wiring of the dialogue task's own figures and of its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kedro.pipeline import Node
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.evaluation.comparison import estimate
from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting import tables
from grpo_pipeline.pipelines.reporting.data_section import data_parts
from grpo_pipeline.pipelines.reporting.figures import INK, colour_of, plain_axes
from grpo_pipeline.pipelines.reporting.page import Page, configuration_text, render
from grpo_pipeline.pipelines.reporting.reward_section import reward_section
from grpo_pipeline.pipelines.reporting.tables import Cell, Table, shorten
from grpo_pipeline.statistics.alignment import align_arms
from grpo_pipeline.statistics.bootstrap import cluster_weights, describe
from grpo_pipeline.statistics.metric import Metric, MetricSuite
from grpo_pipeline.tasks import find_task

# Sampled replies with each reward component and advantage -> one table per example, the best reply first.

REWARD = "reward_"


@dataclass(frozen=True)
class ReplyGroup:
    """The group of replies to one example.

    Attributes:
        question: what the language model read, without the stories.
        needs: what the right reply needs.
        replies: reply, reward components, reward and advantage.
    """

    question: str
    needs: str
    replies: Table


def reply_groups(rollouts: pd.DataFrame, *, limit: int) -> list[ReplyGroup]:
    """Return the first ``limit`` examples of a table of sampled replies.

    Args:
        rollouts: rows of ``dialogue.<arm>.rollouts`` (docs/architecture.md); an empty cell is an empty reply.
        limit: how many examples.
    """
    groups = [group for _, group in rollouts.groupby("example_id", sort=False)]
    return [reply_group(group) for group in groups[:limit]]


def reply_group(group: pd.DataFrame) -> ReplyGroup:
    """Return the replies to one example by falling reward; equal replies are shown once, with their number."""
    parts = [name for name in group.columns if name.startswith(REWARD)]
    group = group.assign(reply=group["reply"].fillna("").astype(str))
    shown = group.groupby("reply", sort=False).agg(
        dict.fromkeys((*parts, "reward", "advantage"), "first") | {"sample": "size"}
    )
    ranked = shown.sort_values("reward", ascending=False, kind="stable", na_position="last")
    heads = [
        "reply",
        "times",
        *(name.removeprefix(REWARD) for name in parts),
        "reward",
        "advantage",
    ]
    rows = []
    for reply, row in ranked.to_dict(orient="index").items():
        found = [row[name] for name in (*parts, "reward")]
        rewards = [Cell("not measured") if pd.isna(one) else Cell(f"{one:.3f}") for one in found]
        advantage = row["advantage"]  # 0 teaches nothing
        tone = "better" if advantage > 0 else "worse" if advantage < 0 else ""
        first_cells = Cell(shorten(reply) or "(nothing)"), Cell(str(row["sample"]))
        rows.append([*first_cells, *rewards, Cell(f"{advantage:+.2f}", tone=tone)])
    first = group.iloc[0]
    caption = f"{first['example_id']}: the right reply is “{shorten(first['answer'])}”"
    return ReplyGroup(shorten(first["question"]), str(first["needs"]), Table(caption, heads, rows))


# Predictions of all arms -> bars of reward and F1 by what the right reply needs, with intervals.

PANELS = ("reward", "f1")
NEEDS = ("persona", "story", "none", "unknown")
START_COLOUR = "#999999"


def scores_by_need(
    arms: Mapping[str, pd.DataFrame], params: EvaluationParams, *, suite: MetricSuite
) -> dict[str, Figure]:
    """Draw reward and F1 of the headline rule of each arm, and of the chance rule of the baseline arm, by ``needs``.

    Every bar is read on the same resamples of whole clusters as in the comparison; a metric without an interval (one
    cluster alone needs it) has a bar without one. Returns file name -> panel.
    """
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
        for place, name in enumerate(PANELS)
    }


def draw_bars(
    metric: Metric,
    shown: Mapping[str, pd.DataFrame],
    weights: np.ndarray,
    colours: Mapping[str, str],
) -> Figure:
    """Draw one metric: a group of bars for each need that occurs, a bar for each arm."""
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
    """Return a metric of some of the rows with its 95% interval; the interval is the value where there is none."""
    found = estimate(metric, rows[is_in], weights[:, is_in], cluster="persona_id")
    low, high = describe(found, max_undefined=1.0)["ci95"] or (found.value, found.value)
    return found.value, low, high


# Nodes of the dialogue task's report.

QUARANTINE_ROWS, SHOWN_EXAMPLES = 50, 6
PAGE = Path(__file__).with_name("page.html")


def plot_scores_by_need(params: EvaluationParams, **predictions: pd.DataFrame) -> dict[str, Figure]:
    """Draw reward and F1 by what the right reply needs; one keyword argument per arm, its prediction rows."""
    return scores_by_need(
        predictions, params, suite=build_suite(params.task, params.metric_options)
    )


def render_replies(
    params: EvaluationParams,
    comparison: Mapping[str, Any],
    answer: Mapping[str, Any],
    learning_curves: Mapping[str, bytes],
    scores_by_need: Mapping[str, bytes],
    rollouts: pd.DataFrame,
    reward_audit: Mapping[str, Any],
    reward_audit_figure: bytes,
    data_report: Mapping[str, Any],
    token_report: Mapping[str, Any],
    retrieval_report: Mapping[str, Any],
    quarantine: pd.DataFrame,
    examples: Any,
    parameters: Mapping[str, Any],
) -> str:
    """Put everything on one self-contained HTML page."""
    suite = build_suite(params.task, params.metric_options)
    metrics = suite.for_names(comparison["arms"][comparison["control"]]["metrics"]).metrics
    words = find_task(params.task).words
    parts = {
        "arms": tables.arms_table(comparison, metrics, words=words),
        "baselines": tables.baselines_table(comparison, metrics, words=words),
        **tables.rivals_parts(comparison, suite, words=words),
        "learning_curves": learning_curves,
        "scores_by_need": scores_by_need,
        "replies": reply_groups(rollouts, limit=SHOWN_EXAMPLES),
        "reward": reward_section(reward_audit),
        "reward_figure": reward_audit_figure,
        **data_parts(examples, task=params.task, cluster=params.cluster),
        "data": tables.facts_table("Data report", data_report),
        "retrieval": tables.facts_table(
            "Was the story found that the reply needs?", retrieval_report
        ),
        "tokens": tables.facts_table("Tokens, and what had to be cut", token_report),
        "quarantine": tables.frame_table("Refused entries", quarantine, limit=QUARANTINE_ROWS),
    }
    configuration = configuration_text(parameters, params.task)
    return render(Page(PAGE, comparison, answer, suite.unit.noun, configuration, parts))


PARTS = (
    *(
        "comparison",
        "answer",
        "learning_curves",
        "scores_by_need",
        "data_report",
        "token_report",
        "retrieval_report",
        "quarantine",
        "examples",
    ),
    *("reward_audit", "reward_audit_figure"),
)


def create_report(arms: Sequence[str], shown: str) -> list[Node]:
    """Return the nodes of these arms' page; ``shown`` is the arm whose replies are shown."""
    params = {"params": "params:dialogue.evaluation"}
    samples = {"rollouts": f"dialogue.{shown}.rollouts", "parameters": "parameters"}
    return [
        Node(
            plot_scores_by_need,
            inputs=params | {arm: f"dialogue.{arm}.predictions" for arm in arms},
            outputs="dialogue.scores_by_need",
            name="plot_scores_by_need",
            namespace="dialogue.report",
        ),
        Node(
            render_replies,
            inputs=params | {name: f"dialogue.{name}" for name in PARTS} | samples,
            outputs="dialogue.report",
            name="render_replies",
            namespace="dialogue.report",
        ),
    ]
