"""Read the 0/1 targets of prediction rows, and which rows have a probability."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from grpo_pipeline.statistics.columns import column, has_value

Target = Callable[[pd.DataFrame], np.ndarray]


def label_target(rows: pd.DataFrame) -> np.ndarray:
    """Return 1 for a positive core and 0 for a negative one, [n]."""
    return column(rows, "label")


def involvement_target(rows: pd.DataFrame, *, threshold: float) -> np.ndarray:
    """Return 1 for positives with involvement >= threshold, 0 for all negatives, NaN (left out) for other positives."""
    is_high = column(rows, "involvement") >= threshold
    return np.where(label_target(rows) == 0, 0.0, np.where(is_high, 1.0, np.nan))


def grade_target(rows: pd.DataFrame, *, grade: int) -> np.ndarray:
    """Return 1 for positives of at least this grade group, 0 for the rest, NaN (left out) for ungraded positives."""
    group = column(rows, "grade_group")
    graded = np.where(np.isnan(group), np.nan, (group >= grade).astype(np.float64))
    return np.where(label_target(rows) == 0, 0.0, graded)


def has_prob(rows: pd.DataFrame) -> np.ndarray:
    """Check which rows have a probability."""
    return has_value("prob", rows)
