"""Say, once the data are prepared, what each split holds, and how little a small one can show."""

from collections.abc import Iterator

import pandas as pd

from grpo_pipeline.statistics.answer import cluster_noun
from grpo_pipeline.statistics.bootstrap import FEW_CLUSTERS

SPLITS = ("train", "val", "test")
MOST_LABELS = 6  # a column of more is no class
SMALL = 100  # clusters, below which the width of an interval is worth a line
NORMAL = 1.96  # half the width of a 95% interval in standard errors


def split_lines(table: pd.DataFrame, *, task: str, noun: str, cluster: str) -> Iterator[str]:
    """Yield a table of the splits in lines of even columns, and what the test split could show.

    Args:
        table: of the examples: column ``split``, where there are labels ``label``, and the column that ``cluster`` names.
        task: its name.
        noun: what an example is called.
        cluster: column of the units that are resampled together. Without it nothing is said of them: a task may score samples
            of its own, which are no examples.
    """
    shown = [split for split in SPLITS if (table["split"] == split).any()]
    labels = table["label"].dropna() if "label" in table else pd.Series(dtype=object)
    classes = sorted(labels.unique()) if 1 < labels.nunique() <= MOST_LABELS else []
    clusters = [cluster] if cluster in table else []
    called = cluster_noun({"cluster": cluster})
    heads = [task, f"{noun}s", *(f"{called}s" for _ in clusters)]
    heads += [f"label {one:g}" for one in classes]
    rows = []
    for split in shown:
        part = table[table["split"] == split]
        counts = [len(part), *(part[name].nunique() for name in clusters)]
        counts += [int((part["label"] == one).sum()) for one in classes]
        rows.append([split, *map(str, counts)])
    widths = [max(len(line[place]) for line in (heads, *rows)) for place in range(len(heads))]
    for line in (heads, *rows):
        first, *others = [
            text.ljust(width) if place == 0 else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join([first, *others])
    if clusters:
        yield from power_lines(table.loc[table["split"] == "test", cluster].nunique(), called)


def power_lines(clusters: int, cluster: str) -> Iterator[str]:
    """Say what so few clusters can show; nothing where they are many.

    The 95% interval of a share of a half over n independent clusters reaches 1.96 sqrt(0.25 / n) to either side. That of a
    paired difference is often narrower, that of a mean over correlated rows no narrower: it is a guide and no bound.
    """
    if clusters < FEW_CLUSTERS:
        yield f"{clusters} test {cluster}s, fewer than {FEW_CLUSTERS}: no interval can be given, and nothing shown."
    elif clusters < SMALL:
        reach = NORMAL * (0.25 / clusters) ** 0.5
        known = f"a share near a half is known to about ±{reach:.2f}"
        yield f"{clusters} test {cluster}s: {known}; far smaller differences cannot be shown."
