"""The attention task's model input: a table and the arrays that belong to its rows."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

ARRAYS = ("images", "region", "bag", "lesion")


@dataclass(frozen=True)
class Examples:
    """All cores of a data set at model size; row i of ``table`` owns ``images[i]`` and its masks.

    Attributes:
        table: one row per core, index 0..n-1, canonical columns (see docs/architecture.md) plus ``split``.
        images: uint8 [n, S, S], grey levels, padded to a square with 0.
        region: bool [n, S, S], True where points may fall; never True in the padding.
        bag: bool [n, S, S], True where the label is known (the needle trace).
        lesion: bool [n, S, S], True inside the lesion outline; all False where unknown. Evaluation only.
        digest: hex digest of the content; keys everything that is derived from it.
        clinical: names of the table's clinical columns, in order; NaN there is an unknown value.
    """

    table: pd.DataFrame
    images: np.ndarray
    region: np.ndarray
    bag: np.ndarray
    lesion: np.ndarray
    digest: str
    clinical: tuple[str, ...] = ()

    @property
    def image_size(self) -> int:
        """Side S of the square model image, in pixels."""
        return int(self.images.shape[-1])

    def rows(self, split: str) -> np.ndarray:
        """Return the row numbers of one split, int64 [m], in table order."""
        return np.flatnonzero((self.table["split"] == split).to_numpy())


@dataclass(frozen=True)
class ExampleChunk:
    """Consecutive rows of a data set that is being built: no more of it needs to be in memory.

    Attributes:
        table: of the whole data set, as in ``Examples``.
        start: row of the table that owns the first image.
        images: uint8 [m, S, S].
        region: bool [m, S, S].
        bag: bool [m, S, S].
        lesion: bool [m, S, S].
        clinical: as in ``Examples``.
    """

    table: pd.DataFrame
    start: int
    images: np.ndarray
    region: np.ndarray
    bag: np.ndarray
    lesion: np.ndarray
    clinical: tuple[str, ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether this chunk holds the last row of the table."""
        return self.start + len(self.images) == len(self.table)
