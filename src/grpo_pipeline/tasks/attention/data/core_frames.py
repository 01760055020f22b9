"""Reduce rows of frames to rows of cores, and name pictures."""

import pandas as pd

from grpo_pipeline.tasks.attention.data.table_columns import FRAME_COLUMN


def core_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Select the first row of every core, for counts of cores."""
    return table.drop_duplicates("core_id") if FRAME_COLUMN in table else table


def picture_names(table: pd.DataFrame) -> pd.Series:
    """Name every row: the core, followed by the frame if the core has several."""
    if FRAME_COLUMN not in table:
        return table["core_id"]
    return table["core_id"].astype(str) + " / " + table[FRAME_COLUMN].astype(str)
