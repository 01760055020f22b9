"""Draw the arms of cross-validation, a picture per primary metric."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_pipeline.pipelines.reporting.figures import (
    BLUE,
    INK,
    ORANGE,
    PANEL_INCHES,
    SIDES,
    VERMILLION,
    name_panel,
    plain_axes,
)
from grpo_pipeline.statistics.metric import Metric

ROW_INCHES = 0.5


def draw(result: Mapping[str, Any], metrics: Mapping[str, Metric]) -> dict[str, Figure]:
    """Draw a picture per primary metric: file name -> picture, with a row per arm.

    Bar: 95% interval of the headline; disc: its value; marks below: single folds; cross: all examples pooled.
    """
    return {
        f"{place:02d}_{name}.svg": draw_metric(result, name, metrics[name])
        for place, name in enumerate(result["primary_metrics"])
    }


def draw_metric(result: Mapping[str, Any], name: str, metric: Metric) -> Figure:
    """Draw a metric of every arm."""
    arms = list(result["arms"])
    figure = Figure(figsize=(PANEL_INCHES[0], 1.3 + ROW_INCHES * len(arms)), layout="constrained")
    axes = figure.add_subplot()
    for position, arm in enumerate(arms):
        entry, spread = result["arms"][arm]["metrics"][name], result["spread"][arm][name]
        draw_row(axes, position, entry, spread, result["headline"])
    axes.set_yticks(range(len(arms)), arms)
    axes.set_ylim(len(arms) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    plain_axes(axes, grid="x")
    marks = "disc and bar: inside folds, 95%; marks: single folds; cross: pooled"
    name_panel(axes, metric.title, reading=f"{SIDES[metric.better]}\n{marks}")
    return figure


def draw_row(
    axes: Axes, position: int, entry: Mapping[str, Any], spread: Mapping[str, Any], headline: str
) -> None:
    """Draw the row of an arm; undefined values are left out."""
    if bounds := entry[headline].get("ci95"):
        axes.plot(
            bounds,
            [position, position],
            color=BLUE,
            linewidth=4,
            solid_capstyle="butt",
            gid="interval",
        )
    folds = [value for value in spread["folds"].values() if value is not None]
    axes.plot(folds, [position + 0.25] * len(folds), "|", color=ORANGE, markersize=8, gid="folds")
    for kind, mark, colour in ((headline, "o", INK), ("pooled", "x", VERMILLION)):
        if entry[kind]["value"] is not None:
            axes.plot(
                [entry[kind]["value"]], [position], mark, color=colour, markersize=6, gid=kind
            )
