"""Combine what is said of the frames of a core."""

import pandas as pd

from grpo_pipeline.tasks.attention.data.params import FRAME_COLUMN


def core_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the first row of every core: what counts cores must not count their frames."""
    return table.drop_duplicates("core_id") if FRAME_COLUMN in table else table


def picture_names(table: pd.DataFrame) -> pd.Series:
    """Return the name of every row: the core, and behind it the frame where a core has several."""
    if FRAME_COLUMN not in table:
        return table["core_id"]
    return table["core_id"].astype(str) + " / " + table[FRAME_COLUMN].astype(str)
