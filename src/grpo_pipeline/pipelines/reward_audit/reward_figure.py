"""Draw the reward audit: the reward of each policy, the components that vary inside groups, the agreement with metrics."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_pipeline.pipelines.reporting.figures import BLUE, GREEN, GRID, INK, VERMILLION

Document = Mapping[str, Any]

ROLE_COLOURS = {"start": BLUE, "trivial": VERMILLION, "ceiling": GREEN}

SIGNS = {"higher": 1.0, "lower": -1.0, "none": 0.0}

ROW_INCHES, PANEL_INCHES = 0.42, 4.6


def reward_figure(document: Document) -> Figure:
    """Draw three panels: mean reward per policy, shares of the variance within groups, agreement within groups.

    Args:
        document: of ``judge_reward``.
    """
    rows = max(len(document["policies"]), len(document["agreement"][document["start"]]), 3)
    figure = Figure(figsize=(3 * PANEL_INCHES, 1.6 + ROW_INCHES * rows), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    draw_rewards(left, document)
    draw_shares(middle, document)
    draw_agreement(right, document)
    return figure


def draw_rewards(axes: Axes, document: Document) -> None:
    """Draw by how much each policy's reward exceeds the start's, with the paired 95% interval; labels show the reward."""
    policies = document["policies"]
    axes.axvline(0, color=INK, linewidth=1)
    for row, policy in enumerate(policies.values()):
        entry, colour = (
            policy["more_than_start"] or {"value": 0.0, "ci95": None},
            ROLE_COLOURS[policy["role"]],
        )
        if entry["ci95"]:
            axes.plot(entry["ci95"], [row, row], color=colour, linewidth=4, solid_capstyle="butt")
        if entry["value"] is not None:
            axes.plot([entry["value"]], [row], "o", color=colour)
    _rows(
        axes,
        [
            f"{name} ({policy['role']}), {_number(policy['reward']['value'])}"
            for name, policy in policies.items()
        ],
    )
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x", color=GRID)
    axes.set_title(f"reward, and how much more than {document['start']}", fontsize=10, loc="left")


def draw_shares(axes: Axes, document: Document) -> None:
    """Draw the share of the variance within the start's groups that each component explains; labels show its weight."""
    components = document["policies"][document["start"]]["groups"]["components"]
    shares = [component["explained"]["value"] or 0.0 for component in components.values()]
    axes.barh(range(len(components)), shares, color=BLUE)
    axes.axvline(0, color=INK, linewidth=1)
    _rows(
        axes, [f"{name} (weight {component['weight']:g})" for name, component in components.items()]
    )
    axes.set_xlim(min(0.0, *shares) - 0.02, max(1.0, *shares) + 0.02)
    axes.grid(axis="x", color=GRID)
    axes.set_title(
        f"share of the variance within the groups of {document['start']}", fontsize=10, loc="left"
    )


def draw_agreement(axes: Axes, document: Document) -> None:
    """Draw the rank correlation within the start's groups of the reward and each component with each metric; – is undefined.

    Violet: they agree about what is good; brown: they do not; grey: the metric has no good side.
    """
    found = document["agreement"][document["start"]]
    rho = [
        [pair["within"]["spearman"]["value"] for pair in by_metric.values()]
        for by_metric in found.values()
    ]
    if not document["metrics"]:
        axes.set_axis_off()  # a task without metrics beside its reward
        return
    values = np.array(rho, dtype=np.float64)
    signs = np.array([SIGNS[better] for better in document["metrics"].values()])
    axes.imshow(
        np.ma.masked_invalid(values * signs), cmap=colormaps["PuOr"], vmin=-1, vmax=1, aspect="auto"
    )
    for (row, column), value in np.ndenumerate(values):
        ink = "white" if abs(value * signs[column]) > 0.6 else INK
        axes.text(
            column,
            row,
            _number(None if np.isnan(value) else value),
            ha="center",
            va="center",
            color=ink,
            fontsize=9,
        )
    _rows(axes, list(found))
    arrows = {"higher": " ↑", "lower": " ↓", "none": ""}
    names = [metric + arrows[better] for metric, better in document["metrics"].items()]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_title(
        f"rank correlation\nwithin the groups of {document['start']}", fontsize=10, loc="left"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def _rows(axes: Axes, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
