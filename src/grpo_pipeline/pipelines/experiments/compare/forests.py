"""Draw the differences of all arms to the control, a picture per primary metric."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.reporting.figures import (
    BLUE,
    INK,
    ORANGE,
    PANEL_INCHES,
    SIDES,
    name_panel,
    plain_axes,
)
from grpo_pipeline.statistics.metric import Metric

Entry = Mapping[str, Any]

ROW_INCHES = 0.32


def forest(document: Mapping[str, Any], name: str, metric: Metric) -> Figure:
    """Draw the difference of each arm to the control.

    Thick bar: 95% interval; thin bar: simultaneous interval; disc: mean over the seeds; small marks: single seeds. An arm
    without a value has an empty row that says so.
    """
    entries = {arm: found[name] for arm, found in document["differences"].items()}
    figure = Figure(
        figsize=(PANEL_INCHES[0], 1.3 + ROW_INCHES * max(len(entries), 2)), layout="constrained"
    )
    axes = figure.add_subplot()
    axes.axvline(0, color=INK, linewidth=1)
    for row, (arm, entry) in enumerate(entries.items()):
        draw_row(axes, row, entry, label=arm)
    axes.set_yticks(range(len(entries)), list(entries))
    axes.invert_yaxis()
    axes.set_ylim(len(entries) - 0.4, -0.6)
    plain_axes(axes, grid="x")
    reading = f"difference to {document['control']}, {SIDES[metric.better]}"
    marks = "thick: 95%, thin: simultaneous 95%, marks: single seeds"
    name_panel(axes, metric.title, reading=f"{reading}\n{marks}")
    return figure


def draw_row(axes: Axes, row: int, entry: Entry, *, label: str) -> None:
    """Draw the row of an arm."""
    if entry["value"] is None:
        axes.annotate(
            "undefined",
            (0, row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK,
        )
        return
    for key, width in (("ci95_simultaneous", 1.2), ("ci95", 4.0)):
        if bounds := entry.get(key):
            axes.plot(
                bounds,
                [row, row],
                color=BLUE,
                linewidth=width,
                solid_capstyle="butt",
                gid=f"{label} {key}",
            )
    values = list(entry["seeds"]["values"].values())
    axes.plot(
        values, [row + 0.26] * len(values), "|", color=ORANGE, markersize=6, gid=f"{label} seeds"
    )
    axes.plot([entry["value"]], [row], "o", color=INK, markersize=5, gid=f"{label} mean")
