"""Count the examples of each split, as a table and as a chart of its classes, and write what a small split can show."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.reporting.figures import INK, PANEL_INCHES, plain_axes
from grpo_pipeline.pipelines.reporting.tables import Cell, Table
from grpo_pipeline.statistics.answer_reading import cluster_noun
from grpo_pipeline.statistics.bootstrap import FEW_CLUSTERS

SPLITS = ("train", "val", "test")
MOST_LABELS = 6  # columns of the table; a column of more is no class
MOST_BARS = 40  # of the chart
SMALL = 100  # clusters, below which the width of an interval is worth a line
NORMAL = 1.96  # half the width of a 95% interval in standard errors


def splits_table(table: pd.DataFrame, *, noun: str, cluster: str, classes: str) -> Table:
    """Return splits x (examples, clusters, examples of each class).

    Args:
        table: table of the examples with the column ``split`` and, if present, the columns ``cluster`` and ``classes``.
        noun: the word for an example.
        cluster: column of the units that are resampled together. Without it clusters are left out: a task may score samples of
            its own, which are no examples.
        classes: column that tells classes apart.
    """
    found = classes_in(table, classes, most=MOST_LABELS)
    clusters = [cluster] if cluster in table else []
    heads = ["split", f"{noun}s", *(f"{cluster_noun({'cluster': name})}s" for name in clusters)]
    heads += [f"{classes} {written(one)}" for one in found]
    rows = []
    for split, part in parts_of(table):
        counts = [len(part), *(part[name].nunique() for name in clusters)]
        counts += [int((part[classes] == one).sum()) for one in found]
        rows.append([Cell(split), *(Cell(str(count)) for count in counts)])
    return Table("What each split holds", heads, rows)


def parts_of(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """List name and rows of each split that holds any."""
    for split in SPLITS:
        part = table[table["split"] == split]
        if len(part):
            yield split, part


def classes_in(table: pd.DataFrame, column: str, *, most: int) -> list[Any]:
    """List the values of a column in their order; empty for a single value, or for more than ``most``."""
    values = sorted(table[column].dropna().unique()) if column in table else []
    return values if 1 < len(values) <= most else []


def written(value: Any) -> str:
    """Write a class: a number without superfluous digits, or its name."""
    return value if isinstance(value, str) else f"{value:g}"


def class_chart(table: pd.DataFrame, classes: str) -> Figure | None:
    """Draw the share of each class in each split, a panel per split; None without classes."""
    found, parts = classes_in(table, classes, most=MOST_BARS), list(parts_of(table))
    if not found:
        return None
    figure = Figure(figsize=(PANEL_INCHES[0], 2.2), layout="constrained")
    panels = figure.subplots(1, len(parts), sharey=True, squeeze=False)[0]
    places = list(range(len(found)))
    for axes, (split, part) in zip(panels, parts, strict=True):
        shares = [float((part[classes] == one).mean()) for one in found]
        axes.bar(places, shares, color=INK, alpha=0.6)
        axes.set_title(f"{split}: {len(part):,}", fontsize=10, loc="left", color=INK)
        every = -(-len(found) // 10)  # ten names have room
        axes.set_xticks(places[::every], [written(one) for one in found[::every]])
        axes.set_xlabel(classes, fontsize=8, color=INK)
        axes.tick_params(labelsize=8, colors=INK)
        plain_axes(axes, grid="y")
    panels[0].set_ylabel("share of the split", fontsize=8, color=INK)
    return figure


def split_lines(
    table: pd.DataFrame, *, task: str, noun: str, cluster: str, classes: str
) -> Iterator[str]:
    """Write the table of the splits in lines of even columns, and what the test split can show.

    Args:
        table: table of the examples.
        task: name of the task, in the place of the first head.
        noun: as of ``splits_table``.
        cluster: the same.
        classes: the same.
    """
    counted = splits_table(table, noun=noun, cluster=cluster, classes=classes)
    lines = [[task, *counted.heads[1:]], *([cell.text for cell in row] for row in counted.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        right = (text.rjust(width) for text, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *right])
    if cluster in table:
        called = cluster_noun({"cluster": cluster})
        yield from power_lines(table.loc[table["split"] == "test", cluster].nunique(), called)


def power_lines(clusters: int, cluster: str) -> Iterator[str]:
    """Write what so few clusters can show; empty where there are many.

    The 95% interval of a share of 0.5 over n independent clusters reaches 1.96 sqrt(0.25 / n) to either side. The interval of a
    paired difference is often narrower. That of a mean over correlated rows is no narrower: the number is a guide and no bound.
    """
    if clusters < FEW_CLUSTERS:
        yield f"{clusters} test {cluster}s, fewer than {FEW_CLUSTERS}: no interval can be given, and nothing shown."
    elif clusters < SMALL:
        reach = NORMAL * (0.25 / clusters) ** 0.5
        known = f"a share near a half is known to about ±{reach:.2f}"
        yield f"{clusters} test {cluster}s: {known}; far smaller differences cannot be shown."
