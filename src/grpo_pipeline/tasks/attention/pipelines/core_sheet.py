"""Draw the first cores on one page."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.reporting.figures import VERMILLION
from grpo_pipeline.tasks.attention.data.table_columns import FRAME_COLUMN

COLUMNS, NAME_LENGTH = 4, 28

SHEET_CORES = 12


def draw_sheet(rows: Sequence[dict[str, Any]], pictures: Sequence[np.ndarray]) -> Figure:
    """Draw one panel per picture with the name and the score of its core.

    Args:
        rows: of the scores, in the order of the pictures; there may be more of them.
        pictures: uint8 [h, w, 3], at least one.
    """
    columns = min(COLUMNS, len(pictures))
    lines = -(-len(pictures) // columns)
    figure = Figure(figsize=(3.0 * columns, 3.3 * lines + 0.6), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in grid:
        axes.set_axis_off()
    for axes, row, picture in zip(grid, rows, pictures, strict=False):
        axes.imshow(picture, interpolation="nearest")
        axes.set_title(
            f"{short(picture_name(row))}\n{score_text(row)}",
            fontsize=9,
            color=VERMILLION if row["outside"] else "black",
        )
    figure.suptitle(
        f"The first {len(pictures)} of {len(rows)} cores: heatmap and points", fontsize=12
    )
    return figure


def picture_name(row: dict[str, Any]) -> str:
    """Return the core's name, with that of the frame where it has several."""
    return f"{row['core_id']} / {row[FRAME_COLUMN]}" if FRAME_COLUMN in row else str(row["core_id"])


def score_text(row: dict[str, Any]) -> str:
    """Return the score of a core, the calibrated one beside it where there is one, and whether the image is outside."""
    if np.isnan(row["prob"]):
        return "no score: outside the training images"
    text = f"P(cancer) = {row['prob']:.2f}"
    if not np.isnan(row["prob_calibrated"]):
        text += f", calibrated {row['prob_calibrated']:.2f}"
    return f"{text}\noutside the training images" if row["outside"] else text


def short(name: str) -> str:
    """Return a name that fits above a panel, with no character that the text layout reads as a formula."""
    cut = name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"
    return cut.replace("$", r"\$")
