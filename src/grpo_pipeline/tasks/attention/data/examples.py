"""The attention task's model input: a table and the arrays that belong to its rows."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Self

import numpy as np
import pandas as pd

from grpo_pipeline.runs.lookahead import map_ahead, usable_cores
from grpo_pipeline.runs.progress import track
from grpo_pipeline.tasks.attention.clinical import Description, describe_columns
from grpo_pipeline.tasks.attention.data.grey import (
    resize_image,
    resize_mask,
    to_grey8,
    with_model_spacing,
)
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.manifest import parse_checked
from grpo_pipeline.tasks.attention.data.params import (
    FRAME_COLUMN,
    Classes,
    DataParams,
    Preprocessing,
)
from grpo_pipeline.tasks.attention.data.planes import UnreadableFileError
from grpo_pipeline.tasks.attention.data.splits import Splits
from grpo_pipeline.tasks.stored_examples import Stored

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
        """Return what a dataset keeps."""
        meta = {"digest": self.digest, "clinical": list(self.clinical)} | stored_classes(
            self.classes
        )
        return Stored({"table": self.table}, {name: getattr(self, name) for name in ARRAYS}, meta)

    @classmethod
    def restored(cls, stored: Stored) -> Self:
        """Return the examples that were kept."""
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
        """Return the digest of examples whose chunks were kept."""
        return content_digest(stored.tables["table"], [stored.arrays[name] for name in ARRAYS])

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
        """Whether this chunk holds the last row of the table."""
        return self.start + len(self.images) == len(self.table)

    def stored(self) -> Stored:
        """Return what a dataset keeps; it takes the digest when the last chunk is there."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return Stored(
            {"table": self.table},
            arrays,
            {"clinical": list(self.clinical)} | stored_classes(self.classes),
            start=self.start,
            is_last=self.is_last,
        )


def stored_classes(classes: Classes | None) -> dict[str, Any]:
    """Return what the meta data say of classes: nothing where there are none."""
    return {} if classes is None else {"classes": classes.model_dump(mode="json")}


# Build the model input from checked rows: resized arrays, the split, a digest.

CHUNK_BYTES = 16 * 2**20
"""What one chunk of all arrays may take."""


def build_examples(
    raw: ImageFolder, checked: pd.DataFrame, splits: Splits, params: DataParams
) -> tuple[Examples, Description]:
    """Read every core at model size into memory; the pipeline streams the same chunks to disk. Raises as ``stream_examples``."""
    chunks, descriptions = zip(*stream_examples(raw, checked, splits, params), strict=True)
    arrays = {name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ARRAYS}
    table = chunks[0].table
    return Examples(
        table,
        **arrays,
        digest=content_digest(table, arrays.values()),
        clinical=params.columns.clinical,
        classes=params.label.scheme,
    ), descriptions[0]


def stream_examples(
    raw: ImageFolder, checked: pd.DataFrame, splits: Splits, params: DataParams
) -> Iterator[tuple[ExampleChunk, Description]]:
    """Yield the cores at model size, chunk by chunk, in the order of their ids; files are read ahead in threads.

    Yields:
        chunk: table and the next arrays; what is in memory at a time does not grow with the data set.
        description: per clinical column, over the training split: how many values are known and unknown; mean, population
            standard deviation and median of the known ones. Unknown values stay NaN in the table.

    Raises:
        ValueError: if a clinical column has no known value in the training split, or a file has changed since the check.
    """
    table = parse_checked(checked, params)
    split_of = {core_id: name for name, core_ids in splits.items() for core_id in core_ids}
    table = table.assign(split=table["core_id"].map(split_of))
    order = ["core_id", FRAME_COLUMN] if FRAME_COLUMN in table else "core_id"
    table = table.sort_values(order, ignore_index=True)
    description = describe_columns(table, params.columns.clinical)
    table = with_model_spacing(table, params.image_size)
    records = [
        dict(zip(table.columns, cells, strict=True)) for cells in table.itertuples(index=False)
    ]
    workers = params.workers or usable_cores()
    cores = map_ahead(
        partial(read_named_core, raw, params=params), records, workers=workers, ahead=2 * workers
    )
    size = max(1, CHUNK_BYTES // (len(ARRAYS) * params.image_size**2))
    tracked = track(cores, "resize images", total=len(records))
    with closing(cores):
        for start in range(0, len(records), size):
            stacked = map(np.stack, zip(*islice(tracked, size), strict=True))
            arrays = dict(zip(ARRAYS, stacked, strict=True))
            yield (
                ExampleChunk(
                    table=table,
                    start=start,
                    clinical=params.columns.clinical,
                    classes=params.label.scheme,
                    **arrays,
                ),
                description,
            )


def read_named_core(
    raw: ImageFolder, row: dict[str, Any], *, params: DataParams
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read one core; an error names its line of the manifest."""
    try:
        return read_core(raw, row, params)
    except UnreadableFileError as error:
        raise UnreadableFileError(f"{raw.where(row['row'])} ({row['core_id']}): {error}") from error


def read_core(
    raw: ImageFolder, row: dict[str, Any], params: Preprocessing
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read one core at model size; the bag and the region still overlap there, and an unknown lesion is all False."""
    image = to_grey8(raw.read_image(row["image"]), name=row["image"], intensity=params.intensity)
    region = raw.read_mask(row["region_mask"]) if row["region_mask"] else np.ones(image.shape, bool)
    bag = raw.read_mask(row["bag_mask"]) if row["bag_mask"] else region
    lesion = (
        raw.read_mask(row["lesion_mask"]) if row["lesion_mask"] else np.zeros(image.shape, bool)
    )
    size = params.image_size
    small_region, small_bag = resize_mask(region, size), resize_mask(bag, size)
    if not (small_region & small_bag).any():
        # Two masks that touch in less than half a pixel: keep the pixel that both cover most.
        touch = resize_mask(bag & region, size)
        small_region, small_bag = small_region | touch, small_bag | touch
    return (
        resize_image(image, size),
        small_region,
        small_bag,
        resize_mask(lesion, size) & small_region,
    )


def content_digest(table: pd.DataFrame, arrays: Iterable[np.ndarray]) -> str:
    """Return the SHA-256 of the table and the arrays, hexadecimal; it does not depend on the order of the manifest.

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
