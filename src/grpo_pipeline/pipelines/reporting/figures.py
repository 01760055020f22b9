"""The look of the report's figures, and the training metrics of all arms in one figure of small panels."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from plotly import graph_objects as go
from plotly.subplots import make_subplots

# Colours that people with the common colour-vision deficiencies can tell apart.
# Source: Okabe and Ito, Color Universal Design, 2008.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
YELLOW = "#F0E442"
ARM_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK, GRID = "#222222", "#E3E3E3"


def colour_of(arms: Iterable[str]) -> dict[str, str]:
    """Give each arm its colour by its place, the same in every figure."""
    return {arm: ARM_COLOURS[i % len(ARM_COLOURS)] for i, arm in enumerate(arms)}


def translucent(colour: str, opacity: float) -> str:
    """Return ``#RRGGBB`` as a CSS rgba() colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity:g})"


# Learning curves.

# Metrics of every task -> titles; a task has others of its own (``TaskSpec.curves``).
REWARD = "reward/mean"
PANELS = {
    REWARD: "Reward",
    "supervised/loss": "Supervised loss",
    "policy/entropy": "Policy entropy (nats)",
    "kl/reference": "KL to the reference (nats)",
    "policy/ratio_mean": "Mean probability ratio",
    "grad_norm/supervised": "Gradient norm, supervised",
    "grad_norm/rl": "Gradient norm, RL",
    **{f"credit/decision_{place}": f"Mean credit of decision {place}" for place in range(4)},
}
COLUMNS = 2
POINTS = 500


@dataclass(frozen=True)
class Trace:
    """One line of one panel."""

    arm: str
    kind: str  # "raw", "smoothed" or "val"
    steps: pd.Series
    values: pd.Series


def learning_curves(
    rows: Mapping[str, pd.DataFrame], own: Mapping[str, str] | None = None
) -> go.Figure:
    """Overlay the arms in one panel per metric: raw values faint, smoothed training values solid, validation dashed.

    A metric that no arm measured has no panel.

    Args:
        rows: arm -> metric rows (docs/architecture.md), columns ``step``, ``split`` and one per metric.
        own: metric -> title, of the metrics that the task alone has.
    """
    titles = {REWARD: PANELS[REWARD], **(own or {}), **PANELS}
    names = [name for name in titles if any(is_measured(frame, name) for frame in rows.values())]
    if not names:
        text = "No training metrics were recorded."
        figure = go.Figure()
        figure.add_annotation(text=text, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
        return style(figure, height=240)
    lines = -(-len(names) // COLUMNS)
    figure = make_subplots(
        lines,
        COLUMNS,
        subplot_titles=[titles[name] for name in names],
        vertical_spacing=0.28 / lines,
    )
    colours = colour_of(rows)
    shown: set[tuple[str, str]] = set()
    for i, name in enumerate(names):
        for arm, frame in rows.items():
            for trace in traces_of(frame, name, arm=arm):
                key = (arm, trace.kind)
                figure.add_trace(
                    draw(trace, colours[arm], in_legend=trace.kind != "raw" and key not in shown),
                    i // COLUMNS + 1,
                    i % COLUMNS + 1,
                )
                shown.add(key)
    return style(figure, height=90 + 230 * lines)


def is_measured(frame: pd.DataFrame, name: str) -> bool:
    """Say whether a table holds any value of a metric."""
    return name in frame.columns and bool(frame[name].notna().any())


def traces_of(frame: pd.DataFrame, name: str, *, arm: str) -> list[Trace]:
    """Return an arm's lines in one panel, at most POINTS points each."""
    if not is_measured(frame, name):
        return []
    known = frame.dropna(subset=[name])
    train, val = (known[known["split"] == split].sort_values("step") for split in ("train", "val"))
    lines = [
        Trace(arm, "raw", train["step"], train[name]),
        Trace(arm, "smoothed", train["step"], smooth(train[name])),
        Trace(arm, "val", val["step"], val[name]),
    ]
    return [
        Trace(arm, line.kind, thin(line.steps), thin(line.values))
        for line in lines
        if len(line.steps)
    ]


def smooth(values: pd.Series) -> pd.Series:
    """Return an exponential moving average whose memory is a fifteenth of the run, at least one step."""
    return values.ewm(span=max(1.0, len(values) / 15)).mean()


def thin(values: pd.Series) -> pd.Series:
    """Keep every m-th value, counted from the last one, so that at most POINTS remain."""
    every = -(-len(values) // POINTS)
    return values.iloc[::-1].iloc[:: max(every, 1)].iloc[::-1]


def draw(trace: Trace, colour: str, *, in_legend: bool) -> go.Scatter:
    """Turn a line into a Plotly trace; a click on the legend toggles it in all panels."""
    looks = {
        "raw": {
            "mode": "lines",
            "line": {"color": translucent(colour, 0.22), "width": 1},
            "hoverinfo": "skip",
        },
        "smoothed": {"mode": "lines", "line": {"color": colour, "width": 2}},
        "val": {
            "mode": "lines+markers",
            "line": {"color": colour, "width": 1.5, "dash": "dot"},
            "marker": {"size": 5},
        },
    }
    label = {"raw": "train, raw", "smoothed": "train", "val": "validation"}[trace.kind]
    group = f"{trace.arm}/{'val' if trace.kind == 'val' else 'train'}"
    return go.Scatter(
        x=trace.steps.tolist(),
        y=trace.values.tolist(),
        name=f"{trace.arm}, {label}",
        legendgroup=group,
        showlegend=in_legend,
        **looks[trace.kind],
    )


def style(figure: go.Figure, *, height: int) -> go.Figure:
    """Give a figure the report's plain look."""
    figure.update_layout(
        height=height,
        template="plotly_white",
        font={"family": FONT, "size": 13, "color": INK},
        legend={"orientation": "h", "y": 1.0, "yref": "container", "yanchor": "top", "x": 0.0},
        margin={"l": 55, "r": 20, "t": 80, "b": 45},
    )
    figure.update_xaxes(gridcolor=GRID, zeroline=False)
    figure.update_yaxes(gridcolor=GRID, zeroline=False)
    return figure


# The learning curves as a picture, for a page that runs no script.

LOOKS: Mapping[str, Mapping[str, Any]] = {
    "raw": {"alpha": 0.25, "linewidth": 0.8},
    "smoothed": {"linewidth": 1.8},
    "val": {"linestyle": ":", "marker": "o", "markersize": 3},
}
LABELS = {"raw": "_nolegend_", "smoothed": "train", "val": "validation"}


def curves_picture(
    rows: Mapping[str, pd.DataFrame], own: Mapping[str, str] | None = None
) -> Figure:
    """Draw what ``learning_curves`` draws: a panel per metric that any arm measured, the arms over each other.

    Args:
        rows: arm -> metric rows (docs/architecture.md).
        own: metric -> title, of the metrics that the task alone has.
    """
    titles = {REWARD: PANELS[REWARD], **(own or {}), **PANELS}
    names = [name for name in titles if any(is_measured(frame, name) for frame in rows.values())]
    lines = max(-(-len(names) // COLUMNS), 1)
    figure = Figure(figsize=(12, 2.5 * lines + 0.5), layout="constrained")
    panels = figure.subplots(lines, COLUMNS, squeeze=False).ravel()
    colours = colour_of(rows)
    labels: dict[str, Artist] = {}
    for axes, name in zip(panels, names, strict=False):
        axes.set_title(titles[name], fontsize=10, loc="left")
        for arm, frame in rows.items():
            for trace in traces_of(frame, name, arm=arm):
                # Raw values, with an underscore, have no entry in the legend.
                label = LABELS[trace.kind]
                label = label if label.startswith("_") else f"{trace.arm}, {label}"
                look = LOOKS[trace.kind]
                axes.plot(trace.steps, trace.values, color=colours[arm], label=label, **look)
        axes.grid(color=GRID)
        axes.ticklabel_format(useOffset=False)
        axes.spines[["top", "right"]].set_visible(False)
        handles, texts = axes.get_legend_handles_labels()
        labels |= dict(zip(map(str, texts), handles, strict=True))
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    if labels:
        ordered = sorted(labels, key=lambda label: [*rows].index(label.rpartition(",")[0]))
        figure.legend(
            [labels[label] for label in ordered],
            ordered,
            loc="outside lower center",
            ncols=len(labels),
            frameon=False,
        )
    else:
        panels[0].text(0.0, 0.5, "No training metrics were recorded.")
    return figure
