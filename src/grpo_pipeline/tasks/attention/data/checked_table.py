"""Restore the types of the checked table."""

import numpy as np
import pandas as pd

from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.table_columns import (
    CLASS_COLUMN,
    FINDINGS_COLUMN,
    READER_COLUMN,
)

NUMBERS = ("involvement", "grade_group")


def parse_checked(table: pd.DataFrame, params: DataParams) -> pd.DataFrame:
    """Restore the types of a table that was read back as text; a typed table comes back equal."""
    numbers = {name: to_floats(table[name]) for name in number_columns(params)}
    whole = ("label", "row", *(n for n in (CLASS_COLUMN, FINDINGS_COLUMN) if n in table))
    integers = {name: table[name].astype(int) for name in whole}
    flags = {"has_lesion_mask": table["has_lesion_mask"].astype(str) == "True"}
    return table.assign(**numbers, **integers, **flags)


def number_columns(params: DataParams) -> tuple[str, ...]:
    """Return the columns of the checked table whose numbers may be unknown."""
    scored = (READER_COLUMN,) if params.columns.reader_score else ()
    return (*NUMBERS, *params.columns.clinical, *scored)


def to_floats(column: pd.Series) -> pd.Series:
    """Return a column of numbers or of their text as float64, digit for digit; "" is NaN."""
    return column.map(lambda cell: float(cell) if cell != "" else np.nan).astype(np.float64)
