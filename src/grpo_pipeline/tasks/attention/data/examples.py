"""The attention task's model input: a table and the arrays that belong to its rows."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.stored_examples import Stored

ARRAYS = ("images", "region", "bag", "lesion")

CHUNK_BYTES = 16 * 2**20
"""What one chunk of all arrays may take."""


@dataclass(frozen=True)
class Examples:
    """All cores of a data set at model size; row i of ``table`` owns ``images[i]`` and its masks.

    Attributes:
        table: one row per core, index 0..n-1, canonical columns (see docs/attention/artefacts.md) plus ``split``.
        images: uint8 [n, S, S], grey levels, padded to a square with 0.
        region: bool [n, S, S], True where points may fall; never True in the padding.
        bag: bool [n, S, S], True where the label is known (the needle trace).
        lesion: bool [n, S, S], True inside the lesion outline; all False where unknown. Evaluation only.
        digest: hex digest of the content; keys everything that is derived from it.
        clinical: names of the table's clinical columns, in order; NaN there is an unknown value.
        classes: those of the table's column ``class``, or ``findings``; None where there is a label alone.
    """

    table: pd.DataFrame
    images: np.ndarray
    region: np.ndarray
    bag: np.ndarray
    lesion: np.ndarray
    digest: str
    clinical: tuple[str, ...] = ()
    classes: Classes | None = None

    def stored(self) -> Stored:
        """Split the examples into the parts that a dataset stores."""
        meta = {"digest": self.digest, "clinical": list(self.clinical)} | stored_classes(
            self.classes
        )
        return Stored({"table": self.table}, {name: getattr(self, name) for name in ARRAYS}, meta)

    @classmethod
    def restored(cls, stored: Stored) -> Self:
        """Rebuild the examples from their stored parts."""
        meta = stored.meta
        return cls(
            table=stored.tables["table"],
            digest=meta["digest"],
            clinical=tuple(meta["clinical"]),
            classes=Classes.model_validate(meta["classes"]) if "classes" in meta else None,
            **stored.arrays,
        )

    @staticmethod
    def digest_of(stored: Stored) -> str:
        """Find the digest of examples that were stored in chunks."""
        return content_digest(stored.tables["table"], [stored.arrays[name] for name in ARRAYS])

    @property
    def image_size(self) -> int:
        """Side S of the square model image, in pixels."""
        return int(self.images.shape[-1])

    def rows(self, split: str) -> np.ndarray:
        """List the row numbers of a split, int64 [m], in table order."""
        return np.flatnonzero((self.table["split"] == split).to_numpy())


@dataclass(frozen=True)
class ExampleChunk:
    """Consecutive rows of a data set that is built chunk by chunk, to save memory.

    Attributes:
        table: of the whole data set, as in ``Examples``.
        start: row of the table that owns the first image.
        images: uint8 [m, S, S].
        region: bool [m, S, S].
        bag: bool [m, S, S].
        lesion: bool [m, S, S].
        clinical: as in ``Examples``.
        classes: as in ``Examples``.
    """

    table: pd.DataFrame
    start: int
    images: np.ndarray
    region: np.ndarray
    bag: np.ndarray
    lesion: np.ndarray
    clinical: tuple[str, ...] = ()
    classes: Classes | None = None

    @property
    def is_last(self) -> bool:
        """Check whether this chunk holds the last row of the table."""
        return self.start + len(self.images) == len(self.table)

    def stored(self) -> Stored:
        """Split the chunk into the parts that a dataset stores; the digest follows with the last chunk."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return Stored(
            {"table": self.table},
            arrays,
            {"clinical": list(self.clinical)} | stored_classes(self.classes),
            start=self.start,
            is_last=self.is_last,
        )


def stored_classes(classes: Classes | None) -> dict[str, Any]:
    """Describe the classes for the meta data; empty without classes."""
    return {} if classes is None else {"classes": classes.model_dump(mode="json")}


def content_digest(table: pd.DataFrame, arrays: Iterable[np.ndarray]) -> str:
    """Compute the SHA-256 of the table and the arrays, hexadecimal; it does not depend on the order of the manifest.

    Arrays may be memory maps: a few megabytes are read at a time.
    """
    digest = hashlib.sha256(
        table.drop(columns="row").to_csv(index=False, lineterminator="\n").encode()
    )
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        rows = max(1, CHUNK_BYTES // max(1, array[:1].nbytes))
        for start in range(0, len(array), rows):
            digest.update(array[start : start + rows].tobytes())
    return digest.hexdigest()
