"""Describe images that lie in a folder per class."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from grpo_pipeline.tasks.attention.data.row_paths import file_stem
from grpo_pipeline.tasks.attention.guessing.environment import describe
from grpo_pipeline.tasks.attention.guessing.index_file import INDEX, as_csv
from grpo_pipeline.tasks.attention.guessing.mask_files import mask_files, masks_of
from grpo_pipeline.tasks.new_data import Found, Hints, UnclearDataError
from grpo_pipeline.tasks.splits import SPLIT_OF

WORKBOOKS = (".xlsx", ".xls", ".ods")


def of_folders(folder: Path, files: Sequence[str], hints: Hints) -> Found:
    """List the images of a folder per class; above the classes may stand ``train/``, ``val/`` and ``test/``, and lone folders."""
    masks = mask_files(files)
    pictures = sorted({*files} - {*masks})
    above = os.path.commonpath([Path("/", file).parent for file in pictures or files])
    parts = {file: Path("/", file).relative_to(above).parts for file in pictures}
    tops = {p[0].lower() for p in parts.values()}
    has_splits = all(len(p) > 2 for p in parts.values()) and tops <= {*SPLIT_OF}
    depth = 1 if has_splits else 0
    classes = {p[depth] for p in parts.values() if len(p) > depth + 1}
    if len(classes) < 2 or any(len(p) <= depth + 1 for p in parts.values()):
        books = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in WORKBOOKS)
        remedy = "put the images of each class into a folder of its own"
        if books:
            remedy = f"save the sheet of {books[0]} as CSV, or {remedy}"
        raise UnclearDataError(
            f"{folder} must have a CSV file with a row per image, or a folder per class, got {len(files)} images and neither; "
            f"labels are needed to train: {remedy}"
        )
    rows, outlines = [("image", "class", "split", "mask")], masks_of(pictures, masks)
    for file, p in parts.items():
        split = SPLIT_OF[p[0].lower()] if has_splits else ""
        rows.append((file, p[depth], split, outlines[file]))
    columns: dict[str, str | None] = {
        "image": "image",
        "lesion_mask": "mask" if any(row[3] for row in rows[1:]) else None,
        "label": "class",
        "split": "split" if has_splits else None,
        "core_id": "image"
        if len({file_stem(p[-1]) for p in parts.values()}) < len(parts)
        else None,
    }
    note = f"{len(pictures)} images in {len(classes)} folders, one per class; {INDEX} lists them"
    manifest = "{here}/" + INDEX
    found = describe(columns, {}, sorted(classes), hints, note=note, manifest=manifest, numeric=[])
    return replace(found, files={INDEX: as_csv(rows)})
