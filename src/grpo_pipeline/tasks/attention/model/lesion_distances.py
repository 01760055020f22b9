"""Measure how far the points are from the lesion, in millimetres: a measure of attention that near misses improve."""

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from grpo_pipeline.tasks.attention.batch import centre_pixels
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.data.table_columns import MODEL_SPACING_COLUMNS


def lesion_distances(examples: Examples, rows: np.ndarray, grid: int) -> Tensor:
    """Return the distance of every cell to the lesion of its core, float64 [P, V], in millimetres.

        d(cell) = min over lesion pixels of |((i - i') row_mm, (j - j') column_mm)|

    between centres of pixels, (i, j) being the pixel that holds the cell's centre: the pixel that decides whether a point is
    in the lesion, so that d = 0 exactly where ``lesion_hit`` counts a hit. The map is computed exactly (scipy,
    ``distance_transform_edt``), for cores with a lesion outline and a known spacing alone; NaN elsewhere.

    Args:
        examples: the data set; without the columns ``row_mm`` and ``column_mm`` no spacing is known.
        rows: row numbers of the cores, int64 [P].
        grid: side of the cell grid.
    """
    distances = np.full((len(rows), grid * grid), np.nan)
    if not set(MODEL_SPACING_COLUMNS) <= set(examples.table.columns):
        return torch.from_numpy(distances)
    spacing = examples.table[list(MODEL_SPACING_COLUMNS)].to_numpy(np.float64)[rows]
    centre = centre_pixels(grid, examples.image_size).numpy()
    for p in np.flatnonzero(np.isfinite(spacing).all(1)):
        lesion = np.array(examples.lesion[rows[p]])
        if lesion.any():
            distance = distance_transform_edt(~lesion, sampling=tuple(spacing[p]))
            distances[p] = distance[np.ix_(centre, centre)].ravel()
    return torch.from_numpy(distances)


def mean_distance(actions: Tensor, distances: Tensor) -> np.ndarray:
    """Return the mean distance of all points of each core's sets, float64 [P]; NaN where it is unknown or there is no point.

    Args:
        actions: cells, int64 [P, E, k]; the action V is no point.
        distances: of every cell, [P, V].
    """
    cells = actions.flatten(1).to(distances.device)
    is_point = cells < distances.shape[1]
    found = torch.gather(distances, 1, cells.masked_fill(~is_point, 0)).masked_fill(~is_point, 0.0)
    return np.asarray((found.sum(1) / is_point.sum(1)).numpy())
