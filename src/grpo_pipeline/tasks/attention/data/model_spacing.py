"""Convert the spacing of a stored image to millimetres per pixel of the square model image."""

import numpy as np
import pandas as pd

from grpo_pipeline.tasks.attention.data.grey import fitted_size
from grpo_pipeline.tasks.attention.data.table_columns import (
    MODEL_SPACING_COLUMNS,
    SIZE_COLUMN,
    SPACING_COLUMN,
)


def with_model_spacing(table: pd.DataFrame, image_size: int) -> pd.DataFrame:
    """Add ``row_mm`` and ``column_mm``, NaN where the spacing is unknown; a table without any spacing stays unchanged.

    Args:
        table: with the stored size and spacing of each image as text, or without both columns.
        image_size: side S of the model image in pixels.
    """
    if SPACING_COLUMN not in table or SIZE_COLUMN not in table:
        return table
    pairs = [
        model_spacing(*texts, image_size)
        for texts in zip(table[SPACING_COLUMN], table[SIZE_COLUMN], strict=True)
    ]
    return table.assign(
        **dict(zip(MODEL_SPACING_COLUMNS, np.array(pairs, np.float64).T, strict=True))
    )


def model_spacing(spacing_mm: str, stored_size: str, image_size: int) -> tuple[float, float]:
    """Compute row and column millimetres per model pixel: spacing * stored pixels / pixels of the resized image, per axis.

    The two differ a little even for square stored pixels, since height and width are rounded to whole pixels separately.

    Args:
        spacing_mm: row and column spacing of the stored image, "0.3 0.2", or "".
        stored_size: its rows and columns, "512 384".
        image_size: side of the model image, to which the longer side is resized.
    """
    if not spacing_mm:
        return np.nan, np.nan
    height, width = (int(text) for text in stored_size.split())
    row, column = (float(text) for text in spacing_mm.split())
    fitted = fitted_size((height, width), image_size)
    return row * height / fitted[0], column * width / fitted[1]
