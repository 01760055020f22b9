"""The look of the report's figures, and the training metrics of all arms, a small panel each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from textwrap import fill
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

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
CONTROL_COLOUR, SHOWN_COLOUR, OTHER_COLOURS = BLUE, VERMILLION, (GREEN, PURPLE, ORANGE, SKY)
# A page replaces these two by the colours of its theme (``page.inline_svg``).
INK, GRID = "#222222", "#E3E3E3"
# Of a panel: two stand side by side on a screen, and one is readable on a phone.
PANEL_INCHES = (5.4, 2.5)
TITLE_LETTERS = 66  # a line of its title
SIDES = {"higher": "right is better", "lower": "left is better", "none": "neither side is better"}


def colour_of(arms: Iterable[str], *, control: str, shown: str) -> dict[str, str]:
    """Give each arm its colour, the same on every figure of every run: the control's, the shown arm's, the others' by place."""
    fixed = {shown: SHOWN_COLOUR, control: CONTROL_COLOUR}
    others = [arm for arm in arms if arm not in fixed]
    return {
        arm: fixed.get(arm) or OTHER_COLOURS[others.index(arm) % len(OTHER_COLOURS)] for arm in arms
    }


def plain_axes(axes: Axes, *, grid: Literal["x", "y", "both"] = "both") -> None:
    """Give axes the plain look of every figure: a faint grid behind the data, and no frame above and on the right."""
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color=GRID)
    axes.spines[["top", "right"]].set_visible(False)


def name_panel(axes: Axes, title: str, *, reading: str) -> None:
    """Write a panel's title, wrapped, above it, and below it how it is read."""
    axes.set_title(fill(title, TITLE_LETTERS), fontsize=10, loc="left", color=INK)
    axes.set_xlabel(reading, fontsize=8, color=INK)
    axes.tick_params(labelsize=8, colors=INK)


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
POINTS = 300  # of a line at most


@dataclass(frozen=True)
class Trace:
    """One line of one panel."""

    arm: str
    kind: str  # "raw", "smoothed" or "val"
    steps: pd.Series
    values: pd.Series


def learning_curves(
    rows: Mapping[str, pd.DataFrame],
    own: Mapping[str, str] | None = None,
    *,
    colours: Mapping[str, str],
) -> dict[str, Figure]:
    """Overlay the arms in one panel per metric: raw values faint, smoothed training values solid, validation dotted.

    A metric that no arm measured has no panel.

    Args:
        rows: arm -> metric rows (docs/architecture.md), columns ``step``, ``split`` and one per metric.
        own: metric -> title, of the metrics that the task alone has.
        colours: arm -> its colour.

    Returns:
        File name -> panel, the reward's first: names in alphabetical order are in the order of the page.
    """
    titles = {REWARD: PANELS[REWARD]} | dict(own or {})
    titles |= {name: title for name, title in PANELS.items() if name not in titles}
    names = [name for name in titles if any(is_measured(frame, name) for frame in rows.values())]
    return {
        f"{place:02d}_{name.replace('/', '_')}.svg": draw_panel(
            [trace for arm, frame in rows.items() for trace in traces_of(frame, name, arm=arm)],
            titles[name],
            colours,
        )
        for place, name in enumerate(names)
    }


LOOKS: dict[str, dict[str, Any]] = {
    "raw": {"alpha": 0.25, "linewidth": 0.8},
    "smoothed": {"linewidth": 1.8},
    "val": {"linestyle": ":", "marker": "o", "markersize": 3},
}


def draw_panel(traces: Iterable[Trace], title: str, colours: Mapping[str, str]) -> Figure:
    """Draw the lines of one metric over the training steps; their colours are explained once for all panels."""
    figure = Figure(figsize=PANEL_INCHES, layout="constrained")
    axes = figure.add_subplot()
    for trace in traces:
        look = {"color": colours[trace.arm], "gid": f"{trace.arm} {trace.kind}"} | LOOKS[trace.kind]
        axes.plot(trace.steps, trace.values, **look)
    name_panel(axes, title, reading="training step")
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.ticklabel_format(useOffset=False)
    plain_axes(axes)
    return figure


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
