"""Compute digests of the files that a manifest names."""

import hashlib
from pathlib import Path, PurePosixPath

import pandas as pd

from grpo_pipeline.runs.lookahead import map_ahead, usable_cores
from grpo_pipeline.tasks.attention.data.formats.metaimage import metaimage_data
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, resolve_below
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.planes import (
    SEVERAL_FILES,
    split_address,
    split_key,
    split_values,
)
from grpo_pipeline.tasks.attention.data.table_columns import PATHS


def manifest_digest(raw: ImageFolder) -> str:
    """Compute the SHA-256 of the manifest, or of the JSON files of all cases in their order, hexadecimal."""
    if not raw.cases:
        return file_digest(raw.manifest_path)
    digest, name = hashlib.sha256(), raw.manifest_path.name
    for case in raw.cases:
        path = raw.root / case / name
        digest.update(f"{case}\0{file_digest(path) if path.is_file() else ''}\n".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """Compute the SHA-256 of a file of any size, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_digest(raw: ImageFolder, checked: pd.DataFrame, params: DataParams) -> str:
    """Compute the SHA-256 of all files that the usable rows name, with their names, in sorted order."""
    names = {path for column in PATHS for path in checked[column] if path}
    # The file, without the plane, the key and the values of its path.
    files = {file for name in names for file in name.split(SEVERAL_FILES)}
    names = {split_key(split_address(split_values(name)[0])[0])[0] for name in files}
    names |= {
        str(PurePosixPath(name).with_name(metaimage_data(resolve_below(raw.root, name), name).name))
        for name in names
        if name.lower().endswith(".mhd")
    }
    ordered, workers = sorted(names), usable_cores()
    digests = map_ahead(
        lambda name: file_digest(resolve_below(raw.root, name)),
        ordered,
        workers=workers,
        ahead=4 * workers,
    )
    digest = hashlib.sha256()
    for name, found in zip(ordered, digests, strict=True):
        digest.update(f"{name}\0{found}\n".encode())
    return digest.hexdigest()
