"""Describe the data on a task's page: sizes of the splits, shares of the classes, and an example of each class."""

from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.reporting import tables
from grpo_pipeline.pipelines.reporting.page import svg_bytes
from grpo_pipeline.pipelines.reporting.splits import (
    MOST_BARS,
    class_chart,
    classes_in,
    parts_of,
    splits_table,
)
from grpo_pipeline.tasks import find_task

MOST_SHOWN = 6  # classes of which an example is shown


def data_parts(examples: Any, *, task: str, cluster: str) -> dict[str, Any]:
    """Build the parts of templates/data.html; they are None where the examples have no table with splits.

    Args:
        examples: ``<task>.examples``.
        task: name of the task.
        cluster: column of the units that are resampled together.
    """
    table = getattr(examples, "table", None)
    if table is None or "split" not in table:
        return {"splits": None, "class_chart": None, "one_of_each": None}
    spec = find_task(task)
    rows = one_of_each(table, spec.classes)
    shown = resolve_name(spec.one_of_each)(examples, rows) if spec.one_of_each else table.iloc[rows]
    if isinstance(shown, pd.DataFrame):
        shown = replace(
            tables.frame_table("", shown, limit=len(shown)), caption="An example of each"
        )
    chart = class_chart(table, spec.classes)
    return {
        "splits": splits_table(table, noun=spec.noun, cluster=cluster, classes=spec.classes),
        "class_chart": None if chart is None else svg_bytes(chart),
        "one_of_each": shown,
    }


def one_of_each(table: pd.DataFrame, classes: str, *, most: int = 0) -> np.ndarray:
    """Find the first example of each class, in the training split if possible; returns at most MOST_SHOWN row numbers.

    Of more classes, as of sizes, those at even places; without classes the first example. With ``most`` as many of each class as
    make ``most`` in all.
    """
    _, part = next(parts_of(table), ("", table))
    found = classes_in(part, classes, most=MOST_BARS)
    places = np.flatnonzero(table.index.isin(part.index))
    if not found:
        return places[: max(most, 1)]
    few = np.linspace(0, len(found) - 1, min(len(found), MOST_SHOWN)).round().astype(int)
    values = part[classes].to_numpy()
    each = max(most // len(few), 1)
    return np.concatenate([places[np.flatnonzero(values == found[one])[:each]] for one in few])
