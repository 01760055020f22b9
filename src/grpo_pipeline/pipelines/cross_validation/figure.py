"""The arms of cross-validation in one picture: the value inside the folds with its interval, and each fold beside it."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.reporting.palette import BLUE, GRID, INK, ORANGE, VERMILLION
from grpo_pipeline.tasks.metric import Metric

ROW_INCHES, PANEL_INCHES = 0.5, 4.0


def draw(result: Mapping[str, Any], metrics: Mapping[str, Metric]) -> Figure:
    """Draw one panel per primary metric, one row per arm.

    Bar: 95% interval of the headline; disc: its value; marks below: single folds; cross: all cores pooled.
    """
    names, arms = result["primary_metrics"], list(result["arms"])
    figure = Figure(figsize=(PANEL_INCHES * len(names), 1.4 + ROW_INCHES * len(arms)), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for position, arm in enumerate(arms):
            draw_row(axes, position, result["arms"][arm]["metrics"][name], result["spread"][arm][name], result["headline"])
        finish(axes, arms, metrics[name])
    figure.suptitle(
        "disc and bar: inside folds, 95%; marks: single folds; cross: pooled", fontsize=9, x=0.01, ha="left", color=INK
    )
    return figure


def draw_row(axes: Axes, position: int, entry: Mapping[str, Any], spread: Mapping[str, Any], headline: str) -> None:
    """Draw one arm; what is undefined is left away."""
    if bounds := entry[headline].get("ci95"):
        axes.plot(bounds, [position, position], color=BLUE, linewidth=4, solid_capstyle="butt", gid="interval")
    folds = [value for value in spread["folds"].values() if value is not None]
    axes.plot(folds, [position + 0.25] * len(folds), "|", color=ORANGE, markersize=8, gid="folds")
    for kind, mark, colour in ((headline, "o", INK), ("pooled", "x", VERMILLION)):
        if entry[kind]["value"] is not None:
            axes.plot([entry[kind]["value"]], [position], mark, color=colour, markersize=6, gid=kind)


def finish(axes: Axes, arms: list[str], metric: Metric) -> None:
    """Name the rows and the axis."""
    axes.set_yticks(range(len(arms)), arms)
    axes.set_ylim(len(arms) - 0.4, -0.6)
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    good = {"higher": ", right is better", "lower": ", left is better", "none": ""}[metric.better]
    axes.set_xlabel(f"{metric.title}{good}", fontsize=9)
