"""Columns of prediction rows as numbers, and the metric that most of them become: their mean."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd

from grpo_pipeline.tasks import weighted
from grpo_pipeline.tasks.metric import Direction, Metric


def column(rows: pd.DataFrame, name: str) -> np.ndarray:
    """Return a numeric column as float64 [n]; empty cells are NaN."""
    return rows[name].to_numpy(dtype=np.float64, na_value=np.nan)


def has_value(name: str, rows: pd.DataFrame) -> np.ndarray:
    """Return where a column holds a number, bool [n]; nowhere in a table that has no such column."""
    if name not in rows:
        return np.zeros(len(rows), bool)
    return np.asarray(np.isfinite(column(rows, name)))


# Of each reward of the user's: how many samples of the row it was asked about, and how many of them it gave no value.
ASKED, UNSCORED = "asked_", "unscored_"


def unscored_columns(parts: Mapping[str, np.ndarray], asked: np.ndarray) -> dict[str, np.ndarray]:
    """Return what rewards left without a value, as columns of prediction rows.

    Args:
        parts: name -> values [rows, samples], NaN where there is none.
        asked: bool [rows, samples], True for a sample that was to be scored.

    Returns:
        ``asked_<part>`` and ``unscored_<part>``, int64 [rows].
    """
    columns = {f"{ASKED}{name}": asked.sum(axis=1) for name in parts}
    return columns | {f"{UNSCORED}{name}": (np.isnan(values) & asked).sum(axis=1) for name, values in parts.items()}


def mean_metric(name: str, *, title: str, better: Direction, reason: str) -> Metric:
    """Build the mean of one column over the rows that have a value."""
    return Metric(
        title=title,
        better=better,
        reason=reason,
        usable=partial(has_value, name),
        compute=lambda rows, weights: weighted.mean(column(rows, name), weights),
    )
