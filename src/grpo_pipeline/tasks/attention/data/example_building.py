"""Build the model input from checked rows: resized arrays, the split, a digest."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.runs.lookahead import map_ahead, usable_cores
from grpo_pipeline.runs.progress import track
from grpo_pipeline.tasks.attention.clinical import Description, describe_columns
from grpo_pipeline.tasks.attention.data.checked_table import parse_checked
from grpo_pipeline.tasks.attention.data.examples import (
    ARRAYS,
    CHUNK_BYTES,
    ExampleChunk,
    Examples,
    content_digest,
)
from grpo_pipeline.tasks.attention.data.grey import resize_image, resize_mask, to_grey8
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.model_spacing import with_model_spacing
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.preprocessing_params import Preprocessing
from grpo_pipeline.tasks.attention.data.splits import Splits
from grpo_pipeline.tasks.attention.data.table_columns import FRAME_COLUMN
from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError


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
    workers = usable_cores()
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
    """Read a core; an error names its line of the manifest."""
    try:
        return read_core(raw, row, params)
    except UnreadableFileError as error:
        raise UnreadableFileError(f"{raw.where(row['row'])} ({row['core_id']}): {error}") from error


def read_core(
    raw: ImageFolder, row: dict[str, Any], params: Preprocessing
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read a core at model size. Bag and region may still overlap; an unknown lesion is all False."""
    image = to_grey8(raw.read_image(row["image"]), name=row["image"], intensity=params.intensity)
    region = raw.read_mask(row["region_mask"]) if row["region_mask"] else np.ones(image.shape, bool)
    bag = raw.read_mask(row["bag_mask"]) if row["bag_mask"] else region
    lesion = (
        raw.read_mask(row["lesion_mask"]) if row["lesion_mask"] else np.zeros(image.shape, bool)
    )
    size = params.image_size
    small_region, small_bag = resize_mask(region, size), resize_mask(bag, size)
    if not (small_region & small_bag).any():
        # Two masks that overlap in less than half a pixel: keep the pixel that both cover most.
        touch = resize_mask(bag & region, size)
        small_region, small_bag = small_region | touch, small_bag | touch
    return (
        resize_image(image, size),
        small_region,
        small_bag,
        resize_mask(lesion, size) & small_region,
    )
