"""Draw gradient norms of loss terms on components as a heatmap; exact zeros have a look of their own."""

import math
from typing import Any

import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from grpo_pipeline.pipelines.reporting.figures import GRID, INK, VERMILLION

REWARD = "reward"

COLOURS = colormaps["viridis"]

ZERO: dict[str, Any] = {"facecolor": GRID, "edgecolor": "#9A9A9A", "hatch": "///", "linewidth": 0.0}

WRONG: dict[str, Any] = {"facecolor": "none", "edgecolor": VERMILLION, "linewidth": 3.0}


def norm_heatmap(table: pd.DataFrame) -> Figure:
    """Draw a cell per term and component, coloured by log10 of the norm, with a panel for reward components below.

    An exact 0 is grey and hatched. An unexpected cell is framed and shows the expectation.

    Args:
        table: columns ``term``, ``component``, ``grad_norm`` (NaN in a reward row: attached to a graph), ``expected`` and
            ``agrees``; one row per cell.
    """
    is_reward = table["term"] == REWARD
    panels = [rows for rows in (table[~is_reward], table[is_reward]) if len(rows)]
    heights = [rows["term"].nunique() for rows in panels]
    columns = max(rows["component"].nunique() for rows in panels)
    figure = Figure(figsize=(1.5 * columns + 3.0, 0.8 * sum(heights) + 2.2), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights).ravel()
    # Colour scale over log10 of the positive, finite norms; from -1 to 0 without such norms.
    norms = table["grad_norm"]
    logs = [math.log10(norm) for norm in norms if 0.0 < norm < math.inf] or [-0.5]
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    scale = Normalize(low, high if high > low else low + 1)
    for axes, rows in zip(grid, panels, strict=True):
        draw_panel(axes, rows, scale)
    bar = figure.colorbar(ScalarMappable(scale, COLOURS), ax=list(grid))
    bar.set_label("log10 of the norm of the weighted gradient")
    figure.suptitle("What each loss term teaches", fontsize=13)
    labels = ((ZERO, "exactly 0"), (WRONG, "not as expected"))
    handles = [Patch(**style, label=label) for style, label in labels]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure


def draw_panel(axes: Axes, rows: pd.DataFrame, scale: Normalize) -> None:
    """Draw the cells of a table, terms from top to bottom in its order."""
    terms, components = (list(dict.fromkeys(rows[name])) for name in ("term", "component"))
    for row in rows.itertuples(index=False):
        draw_cell(
            axes,
            row,
            column=components.index(row.component),
            line=terms.index(row.term),
            scale=scale,
        )
    axes.set(xlim=(-0.5, len(components) - 0.5), ylim=(len(terms) - 0.5, -0.5))
    axes.set_xticks(range(len(components)), components)
    axes.set_yticks(range(len(terms)), terms)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw_cell(axes: Axes, row: Any, *, column: int, line: int, scale: Normalize) -> None:
    """Draw a cell with its number."""
    corner, norm = (column - 0.48, line - 0.46), float(row.grad_norm)
    is_number = 0.0 < norm < math.inf
    colour = COLOURS(scale(math.log10(norm))) if is_number else None
    style: dict[str, Any] = (
        ZERO if norm == 0 else {"facecolor": colour or "white", "linewidth": 0.0}
    )
    axes.add_patch(Rectangle(corner, 0.96, 0.92, **style))
    if not row.agrees:
        axes.add_patch(Rectangle(corner, 0.96, 0.92, **WRONG))
    note = "" if row.agrees else f"\nexpected {row.expected}"
    ink = "white" if colour is not None and is_dark(colour) else INK
    axes.text(
        column,
        line,
        cell_text(row.term, norm) + note,
        ha="center",
        va="center",
        color=ink,
        fontsize=9,
    )


def cell_text(term: str, norm: float) -> str:
    """Write the text of a cell."""
    if norm == 0:
        return "0"
    return "graph" if term == REWARD and math.isnan(norm) else f"{norm:.1e}"


def is_dark(colour: tuple[float, float, float, float]) -> bool:
    """Check whether white text is easier to read than black on an RGBA colour (luma of ITU-R BT.601 below 0.5)."""
    red, green, blue, _ = colour
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
