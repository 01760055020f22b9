"""Read columns of prediction rows as numbers."""

import numpy as np
import pandas as pd


def column(rows: pd.DataFrame, name: str) -> np.ndarray:
    """Return a numeric column as float64 [n]; empty cells are NaN."""
    return rows[name].to_numpy(dtype=np.float64, na_value=np.nan)


def has_value(name: str, rows: pd.DataFrame) -> np.ndarray:
    """Find the rows in which a column holds a number, bool [n]; none if the table has no such column."""
    if name not in rows:
        return np.zeros(len(rows), bool)
    return np.asarray(np.isfinite(column(rows, name)))
