"""Draw the training metrics of all arms, a small panel each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_pipeline.pipelines.reporting.figures import PANEL_INCHES, name_panel, plain_axes

# Metrics of every task -> titles; ``TaskSpec.curves`` has those of a task.
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
    **{f"credit/turn_{turn}": f"Mean credit of turn {turn}" for turn in range(4)},
}

POINTS = 300  # of a line at most

LOOKS: dict[str, dict[str, Any]] = {
    "raw": {"alpha": 0.25, "linewidth": 0.8},
    "smoothed": {"linewidth": 1.8},
    "val": {"linestyle": ":", "marker": "o", "markersize": 3},
}


@dataclass(frozen=True)
class Trace:
    """A line of a panel."""

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
    """Draw a panel per metric with all arms: raw values faint, smoothed training values solid, validation dotted.

    A metric that no arm measured has no panel.

    Args:
        rows: arm -> metric rows, columns ``step``, ``split`` and each metric.
        own: metric -> title, of the task's own metrics.
        colours: arm -> its colour.

    Returns:
        File name -> panel, the reward's first. The alphabetical order of the names is the order of the page.
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


def draw_panel(traces: Iterable[Trace], title: str, colours: Mapping[str, str]) -> Figure:
    """Draw the lines of a metric over the training steps; all panels share a legend."""
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
    """Check whether a table holds any value of a metric."""
    return name in frame.columns and bool(frame[name].notna().any())


def traces_of(frame: pd.DataFrame, name: str, *, arm: str) -> list[Trace]:
    """Compute an arm's lines in a panel, at most POINTS points each."""
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
    """Smooth values by an exponential moving average whose memory is a fifteenth of the run, at least one step."""
    return values.ewm(span=max(1.0, len(values) / 15)).mean()


def thin(values: pd.Series) -> pd.Series:
    """Keep every m-th value, counted from the last value, so that at most POINTS remain."""
    every = -(-len(values) // POINTS)
    return values.iloc[::-1].iloc[:: max(every, 1)].iloc[::-1]
