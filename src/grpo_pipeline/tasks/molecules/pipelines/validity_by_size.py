"""Draw the share of valid sampled molecules by size, with intervals."""

import numpy as np
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.reporting.figures import GRID
from grpo_pipeline.statistics.columns import column
from grpo_pipeline.tasks.molecules.pipelines.sampled_molecules import SampledMolecules

MOST_SIZES = 12


def validity_by_size(molecules: SampledMolecules) -> Figure:
    """Draw a line per arm and for the start: the share of valid graphs of each size, with 95% intervals."""
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
    """Group the sizes, (smallest, largest): each size by itself, or at most MOST_SIZES groups of about equally many graphs."""
    different = np.unique(sizes).astype(int)
    if len(different) <= MOST_SIZES:
        return [(int(size), int(size)) for size in different]
    ends = np.unique(
        np.quantile(sizes, np.arange(1, MOST_SIZES + 1) / MOST_SIZES, method="inverted_cdf")
    ).astype(int)
    starts = [int(different[0]), *(int(end) + 1 for end in ends[:-1])]
    return [(start, int(end)) for start, end in zip(starts, ends, strict=True)]


def group_label(group: tuple[int, int]) -> str:
    """Write the label of a group: ``9``, or ``9 to 12``."""
    low, high = group
    return str(low) if low == high else f"{low} to {high}"
