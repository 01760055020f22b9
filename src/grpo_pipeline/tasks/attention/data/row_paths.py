"""Build the paths of a row's files, and read names from them."""

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

from grpo_pipeline.tasks.attention.data.column_params import ColumnParams, FolderParams
from grpo_pipeline.tasks.attention.data.planes import (
    SEVERAL_FILES,
    split_address,
    split_key,
    with_address,
    with_values,
)
from grpo_pipeline.tasks.attention.data.preprocessing_params import Preprocessing
from grpo_pipeline.tasks.attention.data.rows import RowError
from grpo_pipeline.tasks.attention.data.table_columns import PATHS


def read_paths(
    cells: Mapping[str, str],
    columns: ColumnParams | Any,
    folders: FolderParams | Any,
    *,
    may_be_empty: Collection[str],
) -> dict[str, str]:
    """Build the paths below the data root, with their folders; "" for a missing file.

    Args:
        cells: the row.
        columns: attribute -> column, None where there is none.
        folders: attribute -> folder that is put before the path.
        may_be_empty: attributes whose cell may be empty.
    """
    paths = {}
    for name in (name for name in PATHS if name in type(folders).model_fields):
        column, folder = getattr(columns, name), getattr(folders, name)
        cell = cells[column] if column else ""
        if column and not cell and name not in may_be_empty:
            raise RowError(
                f"column {column!r} must hold the path of the {name}, got an empty cell; fill it in"
            )
        # A plain join: an absolute path or ".." in the cell must reach the check of the data root unchanged.
        paths[name] = SEVERAL_FILES.join(
            f"{folder.rstrip('/')}/{file}" if file and folder and not file.startswith("/") else file
            for file in files_of(name, cell)
        )
    return paths


def addressed(paths: Mapping[str, str], params: Preprocessing) -> dict[str, str]:
    """Add to the paths the plane from the parameters, and to those of masks the values that count as inside."""
    found = {
        name: SEVERAL_FILES.join(with_address(file, params.volume) for file in files_of(name, path))
        for name, path in paths.items()
    }
    values = params.mask_values
    return {
        name: with_values(path, getattr(values, name)) if name in PATHS[1:] else path
        for name, path in found.items()
    }


def files_of(name: str, cell: str) -> list[str]:
    """List the files of a cell: a mask may be drawn in several, ``a.png;b.png``."""
    if name == "image":
        return [cell]
    return [file.strip() for file in cell.split(SEVERAL_FILES)]


def file_stem(path: str) -> str:
    """Find the file name without its ending (``.nii.gz`` is a single ending), or the last part of a key in a file."""
    name, key = split_key(split_address(path)[0])
    return PurePosixPath(key).name if key else PurePosixPath(name.removesuffix(".gz")).stem
