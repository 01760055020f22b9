"""Sampled molecules beside the training molecules: what they are made of, and how their properties are distributed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting.figures import GRID, YELLOW, colour_of
from grpo_pipeline.pipelines.reporting.tables import Cell, Table, mark_of, value_cell
from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.alignment import align_arms
from grpo_pipeline.statistics.bootstrap import (
    Estimate,
    cluster_weights,
    describe,
    few_clusters_reason,
)
from grpo_pipeline.statistics.metric import SHARE, UNBOUNDED, Bounds, MetricSuite, column
from grpo_pipeline.tasks.molecules.evaluation.metrics import TRAINING
from grpo_pipeline.tasks.molecules.reward_params import WindowParams

# Prediction rows of all arms of the molecule task -> what its figures read: the start, the arms, the training molecules.

START_COLOUR, TRAINING_COLOUR = "#999999", "#222222"


@dataclass(frozen=True)
class SampledMolecules:
    """Sampled graphs, whose rows are aligned, and what they are compared with.

    Attributes:
        rows: who drew them -> one row per graph: the chance rule of the baseline arm first (where there is one), then the arms.
        colours: of each of these.
        training: column -> its values over the training molecules; empty where the predictions hold none.
        weights: how often each resample holds each row, [B, n]; the same resamples as in the comparison.
        cluster: column of the clusters that are resampled.
    """

    rows: dict[str, pd.DataFrame]
    colours: dict[str, str]
    training: Mapping[str, np.ndarray]
    weights: np.ndarray
    cluster: str

    def mean(
        self, who: str, values: np.ndarray, *, is_in: np.ndarray
    ) -> tuple[float, float, float]:
        """Return the mean of some of the rows with its 95% interval; the interval is the mean where there is none.

        Args:
            who: whose rows.
            values: one number per row, [n]; read where ``is_in`` only.
            is_in: which rows take part, [n]; at least one.
        """
        if len(values) != len(self.rows[who]):
            raise ValueError(
                f"values must be one per row of {who}, got {len(values)} for {len(self.rows[who])}; take its rows"
            )
        entry = self.describe(who, values, is_in=is_in)
        value = entry["value"]
        low, high = entry["ci95"] or (value, value)
        return value, low, high

    def describe(
        self, who: str, values: np.ndarray, *, is_in: np.ndarray, bounds: Bounds = UNBOUNDED
    ) -> dict[str, Any]:
        """Return the mean of some of the rows as an entry of a document; arguments as ``mean``, and the range of the mean."""
        weights, part = self.weights[:, is_in], values[is_in]
        resamples = weighted.mean(part, weights)
        found = Estimate(
            float(part.mean()),
            resamples,
            n=len(part),
            reason="no such graph",
            clusters=len(set(self.rows[who][self.cluster][is_in])),
            bounds=bounds,
        )
        return describe(found, max_undefined=1.0)


def gather_molecules(
    arms: Mapping[str, pd.DataFrame], params: EvaluationParams, *, suite: MetricSuite
) -> SampledMolecules:
    """Align the tables of all arms and draw the resamples of the comparison.

    Args:
        arms: arm -> prediction rows (docs/molecules_rewards.md).
        params: names of the rules and of the cluster; resamples and seed.
        suite: the task's metrics.

    Raises:
        ValueError: if the tables do not belong together.
    """
    tables = align_arms(arms, suite, headline=params.headline_rule, cluster=params.cluster)
    rows = {arm: rules[params.headline_rule] for arm, rules in tables.items()}
    before = tables[params.baseline_arm].get(params.chance_rule)
    first = next(iter(rows.values()))
    return SampledMolecules(
        rows=({params.chance_rule: before} if before is not None else {}) | rows,
        colours={params.chance_rule: START_COLOUR}
        | colour_of(rows, control=params.control, shown=params.baseline_arm),
        training=first["training"].iloc[0] or {},
        weights=cluster_weights(
            first[params.cluster], resamples=params.resamples, seed=params.seed
        ),
        cluster=params.cluster,
    )


COUNTS = {"atoms_": "atoms by element", "bonds_": "bonds by kind", "valency_": "atoms by valency"}
PROPERTIES = {"logp": "logP", "qed": "QED", "sa": "synthetic accessibility (1 easy, 10 hard)"}
BINS = 24


def molecule_distributions(molecules: SampledMolecules, *, window: WindowParams | None) -> Figure:
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
    """Return the colour of everyone who is drawn, the training molecules first, where there are any."""
    training = {TRAINING: TRAINING_COLOUR} if molecules.training else {}
    return training | {who: molecules.colours[who] for who in molecules.rows}


def draw_counts(axes: Axes, molecules: SampledMolecules, prefix: str) -> None:
    """Draw one group of bars per class that occurs anywhere; the training molecules have no interval, they are all there is."""
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
    """Return the mean of a column with its interval; 0 where the training molecules have no such class."""
    if who == TRAINING:
        value = float(molecules.training[name].mean()) if name in molecules.training else 0.0
        return value, value, value
    values = column(molecules.rows[who], name)
    return molecules.mean(who, values, is_in=np.ones(len(values), bool))


def draw_property(axes: Axes, molecules: SampledMolecules, name: str) -> None:
    """Draw the density of a property as steps, all on the same bins; who has no value has no line."""
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


def draw_window(axes: Axes, window: WindowParams) -> None:
    """Shade where the reward of logP is whole; the dotted lines are where it has fallen to 0."""
    axes.axvspan(window.low, window.high, color=YELLOW, alpha=0.35, linewidth=0, zorder=0)
    for end in (window.low - window.width, window.high + window.width):
        axes.axvline(end, color="#8a6d00", linestyle=":", linewidth=1)


def _plain(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=GRID)
    axes.spines[["top", "right"]].set_visible(False)


# How often a property of a sampled molecule lies in the window that the reward pays for, and how much more often than before.

Entry = Mapping[str, Any]
NEVER = "the start never hits the window"
TAILS = (0.025, 0.975)


def window_document(
    molecules: SampledMolecules, *, name: str, window: WindowParams | None, start: str
) -> dict[str, Any]:
    """Return for everyone the share of graphs that are valid and in the window, and the ratio to the start's, for JSON.

    The ratio is paired: both shares are taken in the same resample. One in which the start never hits the window counts as
    infinite; an end of the interval that is infinite is null.

    Args:
        molecules: of all arms.
        name: column of the property.
        window: its ends count as inside; None where the reward has none.
        start: who the others are compared with.
    """
    document: dict[str, Any] = {
        "property": name,
        "start": start,
        "window": None,
        "shares": {},
        "ratios": {},
    }
    if window is None:
        return document
    hits = {who: is_inside(rows, name, window) for who, rows in molecules.rows.items()}
    resamples = {
        who: molecules.weights @ inside / molecules.weights.sum(axis=1)
        for who, inside in hits.items()
    }
    document["window"] = {"low": window.low, "high": window.high}
    document["shares"] = {
        who: molecules.describe(who, inside, is_in=np.ones(len(inside), bool), bounds=SHARE)
        for who, inside in hits.items()
    }
    clusters = molecules.rows[next(iter(hits))][molecules.cluster].nunique()
    if start in hits:
        document["ratios"] = {
            who: ratio_entry(
                hits[who],
                hits[start],
                resamples=(resamples[who], resamples[start]),
                clusters=clusters,
            )
            for who in hits
            if who != start
        }
    return document


def is_inside(rows: pd.DataFrame, name: str, window: WindowParams) -> np.ndarray:
    """Return 1.0 where a molecule is valid and its property in the window, else 0.0, [n]."""
    values = column(rows, name)
    return np.asarray((values >= window.low) & (values <= window.high), dtype=np.float64)


def ratio_entry(
    hits: np.ndarray,
    before: np.ndarray,
    *,
    resamples: tuple[np.ndarray, np.ndarray],
    clusters: int,
) -> dict[str, Any]:
    """Return mean(hits) / mean(before) with the interval of the same ratio of the resamples, ours and the start's, both [B]."""
    if not before.any():
        return {"value": None, "ci95": None, "reason": NEVER}
    value = float(hits.mean() / before.mean())
    if reason := few_clusters_reason(clusters):
        return {"value": value, "ci95": None, "reason": reason}
    ours, theirs = resamples
    ratios = np.divide(ours, theirs, out=np.full(len(ours), np.inf), where=theirs > 0)
    ends = np.quantile(ratios, TAILS, method="inverted_cdf")
    return {
        "value": value,
        "ci95": [float(end) if np.isfinite(end) else None for end in ends],
    }


def window_table(document: Mapping[str, Any], *, title: str) -> Table | None:
    """Return who drew x (share in the window, times the start's); None where the reward has no window."""
    if document["window"] is None:
        return None
    ratios, start = document["ratios"], document["start"]
    rows = [
        [
            Cell(who),
            value_cell(share),
            *([ratio_cell(ratios.get(who))] if ratios else []),
        ]
        for who, share in document["shares"].items()
    ]
    heads = [
        "drawn by",
        "share of all graphs",
        *([f"times the share of {start}"] if ratios else []),
    ]
    low, high = document["window"]["low"], document["window"]["high"]
    return Table(f"Valid molecules with a {title} from {low:g} to {high:g}", heads, rows)


def ratio_cell(entry: Entry | None) -> Cell:
    """Return a ratio above its interval, marked where that leaves out 1; empty for the start itself."""
    if entry is None:
        return Cell("")
    if entry["value"] is None:
        return Cell("undefined", note=entry["reason"])
    ends = ["∞" if end is None else f"{end:.3f}" for end in entry["ci95"] or ()]
    note = f"[{', '.join(ends)}]" if ends else entry["reason"]
    return Cell(f"{entry['value']:.2f}", note=note, tone=mark_of(entry, "higher", neutral=1.0))


# Sampled molecules -> the share of valid ones by size, with intervals.

MOST_SIZES = 12


def validity_by_size(molecules: SampledMolecules) -> Figure:
    """Draw one line per arm, and one for the start: the share of valid graphs among those of a size, with 95% intervals."""
    groups = size_groups(
        np.concatenate([column(rows, "n_atoms") for rows in molecules.rows.values()])
    )
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots()
    apart = 0.5 / len(molecules.rows)
    for order, (who, rows) in enumerate(molecules.rows.items()):
        sizes, is_valid = column(rows, "n_atoms"), column(rows, "is_valid")
        inside = [(sizes >= low) & (sizes <= high) for low, high in groups]
        drawn = [place for place, is_in in enumerate(inside) if is_in.any()]
        found = np.array(
            [molecules.mean(who, is_valid, is_in=inside[place]) for place in drawn]
        ).reshape(-1, 3)
        value, low, high = found.T
        axes.errorbar(
            np.array(drawn) + (order - (len(molecules.rows) - 1) / 2) * apart,
            value,
            yerr=[value - low, high - value],
            fmt="o-",
            color=molecules.colours[who],
            label=who,
            capsize=2,
        )
    axes.set_xticks(range(len(groups)), [group_label(group) for group in groups])
    axes.set(xlabel="heavy atoms", ylabel="share of valid graphs", ylim=(-0.03, 1.03))
    axes.grid(axis="y", color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(molecules.rows), frameon=False)
    return figure


def size_groups(sizes: np.ndarray) -> list[tuple[int, int]]:
    """Return groups of sizes, (smallest, largest): one of each, or at most MOST_SIZES of about equally many graphs."""
    different = np.unique(sizes).astype(int)
    if len(different) <= MOST_SIZES:
        return [(int(size), int(size)) for size in different]
    ends = np.unique(
        np.quantile(sizes, np.arange(1, MOST_SIZES + 1) / MOST_SIZES, method="inverted_cdf")
    ).astype(int)
    starts = [int(different[0]), *(int(end) + 1 for end in ends[:-1])]
    return [(start, int(end)) for start, end in zip(starts, ends, strict=True)]


def group_label(group: tuple[int, int]) -> str:
    """Return ``9``, or ``9 to 12``."""
    low, high = group
    return str(low) if low == high else f"{low} to {high}"
