"""Build the model input from checked rows: resized arrays, imputed clinical values, a digest."""

import hashlib
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.progress import track
from grpo_pipeline.tasks.attention.data_params import DataParams
from grpo_pipeline.tasks.attention.examples import Examples
from grpo_pipeline.tasks.attention.grey import resize_image, resize_mask, to_grey8
from grpo_pipeline.tasks.attention.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.manifest import parse_checked
from grpo_pipeline.tasks.attention.splits import Splits

Imputation = dict[str, dict[str, float | int]]


def build_examples(raw: ImageFolder, checked: pd.DataFrame, splits: Splits, params: DataParams) -> tuple[Examples, Imputation]:
    """Read every core at model size, in the order of its core id.

    Returns:
        examples: table and arrays.
        imputation: per clinical column the median of the training split that replaced unknown values, and how many.

    Raises:
        ValueError: if a clinical column has no known value in the training split.
    """
    table = with_split(parse_checked(checked, params), splits)
    table, imputation = impute(table, params.columns.clinical)
    arrays = read_arrays(raw, table, params)
    return Examples(table, *arrays, digest=content_digest(table, arrays)), imputation


def with_split(table: pd.DataFrame, splits: Splits) -> pd.DataFrame:
    """Return the table sorted by core id, with the split of each core and the index 0 .. n-1."""
    split_of = {core_id: name for name, core_ids in splits.items() for core_id in core_ids}
    table = table.assign(split=table["core_id"].map(split_of))
    return table.sort_values("core_id", ignore_index=True)


def impute(table: pd.DataFrame, clinical: tuple[str, ...]) -> tuple[pd.DataFrame, Imputation]:
    """Replace unknown clinical values by the median of the known ones of the training split."""
    is_train = table["split"] == "train"
    imputation: Imputation = {}
    for name in clinical:
        value, unknown = float(table.loc[is_train, name].median()), int(table[name].isna().sum())
        if np.isnan(value):
            raise ValueError(
                f"column {name!r} must have a known value in the training split, got none; "
                "fill it in or drop it from attention.data.columns.clinical"
            )
        imputation[name] = {"median": value, "imputed": unknown}
        table = table.assign(**{name: table[name].fillna(value)})
    return table, imputation


def read_arrays(
    raw: ImageFolder, table: pd.DataFrame, params: DataParams
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return images uint8, region, bag and lesion bool, [n, S, S] each."""
    records = [dict(zip(table.columns, cells, strict=True)) for cells in table.itertuples(index=False)]
    shape = (len(table), params.image_size, params.image_size)
    images = np.zeros(shape, np.uint8)
    region, bag, lesion = (np.zeros(shape, bool) for _ in range(3))
    for i, row in enumerate(track(records, "resize images")):
        images[i], region[i], bag[i], lesion[i] = read_core(raw, row, params)
    return images, region, bag, lesion


def read_core(raw: ImageFolder, row: dict[str, Any], params: DataParams) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read one core at model size; the bag and the region still overlap there, and an unknown lesion is all False."""
    image = to_grey8(raw.read_image(row["image"]), name=row["image"], intensity=params.intensity)
    region = raw.read_mask(row["region_mask"]) if row["region_mask"] else np.ones(image.shape, bool)
    bag = raw.read_mask(row["bag_mask"]) if row["bag_mask"] else region
    lesion = raw.read_mask(row["lesion_mask"]) if row["lesion_mask"] else np.zeros(image.shape, bool)
    size = params.image_size
    small_region, small_bag = resize_mask(region, size), resize_mask(bag, size)
    if not (small_region & small_bag).any():
        # Two masks that touch in less than half a pixel: keep the pixel that both cover most.
        touch = resize_mask(bag & region, size)
        small_region, small_bag = small_region | touch, small_bag | touch
    return resize_image(image, size), small_region, small_bag, resize_mask(lesion, size) & small_region


def content_digest(table: pd.DataFrame, arrays: tuple[np.ndarray, ...]) -> str:
    """Return the SHA-256 of the table and the arrays, hexadecimal; it does not depend on the order of the manifest."""
    digest = hashlib.sha256(table.drop(columns="row").to_csv(index=False, lineterminator="\n").encode())
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
