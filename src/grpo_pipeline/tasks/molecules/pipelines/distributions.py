"""Draw the atoms, bonds and properties of sampled molecules, beside those of the training molecules."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from grpo_pipeline.pipelines.reporting.figures import GRID, YELLOW
from grpo_pipeline.statistics.columns import column
from grpo_pipeline.tasks.molecules.evaluation.metrics import TRAINING
from grpo_pipeline.tasks.molecules.pipelines.sampled_molecules import (
    TRAINING_COLOUR,
    SampledMolecules,
)
from grpo_pipeline.tasks.molecules.rewards.params import WindowReward

COUNTS = {"atoms_": "atoms by element", "bonds_": "bonds by kind", "valency_": "atoms by valency"}
PROPERTIES = {"logp": "logP", "qed": "QED", "sa": "synthetic accessibility (1 easy, 10 hard)"}
BINS = 24


def molecule_distributions(molecules: SampledMolecules, *, window: WindowReward | None) -> Figure:
    """Draw mean numbers per graph of atoms, bonds and valencies with 95% intervals, and densities of logP, QED and SA.

    Counts are of all sampled graphs, valid or not; properties of the valid molecules alone.

    Args:
        molecules: of all arms.
        window: of logP in the reward, which is shaded; None where the reward has none.
    """
    figure = Figure(figsize=(13, 7.4), layout="constrained")
    panels = figure.subplots(2, 3)
    for axes, (prefix, title) in zip(panels[0], COUNTS.items(), strict=True):
        draw_counts(axes, molecules, prefix)
        axes.set_title(f"{title}, mean number in a graph", fontsize=10, loc="left")
    for axes, (name, title) in zip(panels[1], PROPERTIES.items(), strict=True):
        draw_property(axes, molecules, name)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_ylabel("density over valid molecules", fontsize=8)
    handles = [Patch(color=colour, label=who) for who, colour in colours_of(molecules).items()]
    if window is not None:
        draw_window(panels[1][0], window)
        handles.append(
            Patch(
                color=YELLOW,
                alpha=0.35,
                label=f"the reward's window of logP, {window.low:g} to {window.high:g}",
            )
        )
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9, frameon=False
    )
    return figure


def colours_of(molecules: SampledMolecules) -> dict[str, str]:
    """Choose the colour of each group that is drawn, the training molecules first, if there are any."""
    training = {TRAINING: TRAINING_COLOUR} if molecules.training else {}
    return training | {who: molecules.colours[who] for who in molecules.rows}


def draw_counts(axes: Axes, molecules: SampledMolecules, prefix: str) -> None:
    """Draw a group of bars per class; the training molecules have no interval, because they are no sample."""
    first = next(iter(molecules.rows.values()))
    names = [str(name) for name in first.columns if str(name).startswith(prefix)]
    heights = {
        who: [interval(molecules, who, name) for name in names] for who in colours_of(molecules)
    }
    kept = [
        place
        for place in range(len(names))
        if any(found[place][0] > 0 for found in heights.values())
    ]
    width = 0.8 / len(heights)
    for order, (who, colour) in enumerate(colours_of(molecules).items()):
        value, low, high = np.array([heights[who][place] for place in kept]).reshape(-1, 3).T
        places = np.arange(len(kept)) + (order - (len(heights) - 1) / 2) * width
        axes.bar(
            places,
            value,
            width,
            color=colour,
            yerr=[value - low, high - value],
            error_kw={"elinewidth": 1},
        )
    axes.set_xticks(range(len(kept)), [names[place].removeprefix(prefix) for place in kept])
    _plain(axes)


def interval(molecules: SampledMolecules, who: str, name: str) -> tuple[float, float, float]:
    """Compute the mean of a column with its interval; 0 if the training molecules lack the class."""
    if who == TRAINING:
        value = float(molecules.training[name].mean()) if name in molecules.training else 0.0
        return value, value, value
    values = column(molecules.rows[who], name)
    return molecules.mean(who, values, is_in=np.ones(len(values), bool))


def draw_property(axes: Axes, molecules: SampledMolecules, name: str) -> None:
    """Draw the density of a property as steps, all on the same bins; groups without a value have no line."""
    found = {who: property_values(molecules, who, name) for who in colours_of(molecules)}
    everything = np.concatenate(list(found.values()))
    edges = np.histogram_bin_edges(everything if len(everything) else np.zeros(1), bins=BINS)
    for who, values in found.items():
        if len(values):
            density = np.histogram(values, edges)[0] / (len(values) * np.diff(edges))
            look: dict[str, Any] = {"alpha": 0.16} if who == TRAINING else {"linewidth": 1.8}
            axes.stairs(
                density, edges, color=colours_of(molecules)[who], fill=who == TRAINING, **look
            )
    _plain(axes)


def property_values(molecules: SampledMolecules, who: str, name: str) -> np.ndarray:
    """Return the known values of a property, [m]."""
    if who == TRAINING:
        return molecules.training.get(name, np.zeros(0))
    values = column(molecules.rows[who], name)
    return np.asarray(values[np.isfinite(values)])


def draw_window(axes: Axes, window: WindowReward) -> None:
    """Shade the window in which the reward of logP is 1; the dotted lines mark where it reaches 0."""
    axes.axvspan(window.low, window.high, color=YELLOW, alpha=0.35, linewidth=0, zorder=0)
    for end in (window.low - window.width, window.high + window.width):
        axes.axvline(end, color="#8a6d00", linestyle=":", linewidth=1)


def _plain(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
