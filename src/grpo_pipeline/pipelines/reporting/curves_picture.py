"""The learning curves as a picture, for a page that runs no script."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.reporting.learning_curves import COLUMNS, PANELS, Trace, is_measured, traces_of
from grpo_pipeline.pipelines.reporting.palette import GRID, colour_of

LOOKS: Mapping[str, Mapping[str, Any]] = {
    "raw": {"alpha": 0.25, "linewidth": 0.8},
    "smoothed": {"linewidth": 1.8},
    "val": {"linestyle": ":", "marker": "o", "markersize": 3},
}
LABELS = {"raw": "_nolegend_", "smoothed": "train", "val": "validation"}


def curves_picture(rows: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw what ``learning_curves`` draws: a panel per metric that any arm measured, the arms over each other.

    Args:
        rows: arm -> metric rows (docs/architecture.md).
    """
    names = [name for name in PANELS if any(is_measured(frame, name) for frame in rows.values())]
    lines = max(-(-len(names) // COLUMNS), 1)
    figure = Figure(figsize=(12, 2.5 * lines + 0.5), layout="constrained")
    panels = figure.subplots(lines, COLUMNS, squeeze=False).ravel()
    colours = colour_of(rows)
    labels: dict[str, Artist] = {}
    for axes, name in zip(panels, names, strict=False):
        axes.set_title(PANELS[name], fontsize=10, loc="left")
        for arm, frame in rows.items():
            for trace in traces_of(frame, name, arm=arm):
                draw_trace(axes, trace, colours[arm])
        axes.grid(color=GRID)
        axes.ticklabel_format(useOffset=False)
        axes.spines[["top", "right"]].set_visible(False)
        handles, texts = axes.get_legend_handles_labels()
        labels |= dict(zip(map(str, texts), handles, strict=True))
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    if labels:
        ordered = sorted(labels, key=lambda label: [*rows].index(label.rpartition(",")[0]))
        figure.legend([labels[label] for label in ordered], ordered, loc="outside lower center", ncols=len(labels), frameon=False)
    else:
        panels[0].text(0.0, 0.5, "No training metrics were recorded.")
    return figure


def draw_trace(axes: Axes, trace: Trace, colour: str) -> None:
    """Draw one line; raw values have no entry in the legend."""
    label = LABELS[trace.kind]
    label = label if label.startswith("_") else f"{trace.arm}, {label}"
    axes.plot(trace.steps, trace.values, color=colour, label=label, **LOOKS[trace.kind])
