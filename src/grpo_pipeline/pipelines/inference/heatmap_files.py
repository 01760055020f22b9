"""Prepare the pictures of one biopsy core for the folder of heatmaps."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class HeatmapFiles:
    """The pictures of one core, to be added to a folder that is being written.

    Attributes:
        name: of its files, without ending.
        overlay: uint8 [H, W, 3], the heatmap and the points of the first set over the image.
        heatmap: probability, float32 [H, W], in the pixels of the image as it was read; None where it is withheld.
        volume: a nibabel image in the geometry of the input, None where the input is no NIfTI file.
        spacing_mm: row and column spacing, None where unknown.
        is_first: True for the core that starts a new folder.
        is_last: True for the core that completes it.
    """

    name: str
    overlay: np.ndarray
    heatmap: np.ndarray | None
    volume: Any
    spacing_mm: tuple[float, float] | None
    is_first: bool
    is_last: bool
