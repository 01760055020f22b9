"""Check a manifest without labels, by the same rules as one for training."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.tasks.attention.batch import region_cells
from grpo_pipeline.tasks.attention.data.cases import open_rows
from grpo_pipeline.tasks.attention.data.checked_rows import RowReader, check_rows
from grpo_pipeline.tasks.attention.data.contradictions import core_reasons, duplicate_reasons
from grpo_pipeline.tasks.attention.data.grey import resize_mask
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.preprocessing_params import ModelPreprocessing
from grpo_pipeline.tasks.attention.data.quarantine import (
    QUARANTINE_COLUMNS,
    failure,
    refusal,
    without_refused,
)
from grpo_pipeline.tasks.attention.data.row_checks import read_number, required
from grpo_pipeline.tasks.attention.data.row_paths import addressed, file_stem, read_paths
from grpo_pipeline.tasks.attention.data.rows import RowError
from grpo_pipeline.tasks.attention.data.table_columns import (
    ASKED,
    FRAME_COLUMN,
    SIZE_COLUMN,
    SPACING_COLUMN,
)
from grpo_pipeline.tasks.attention.inference.params import PredictParams
from grpo_pipeline.tasks.attention.inference.read_columns import PredictColumns, PredictFolders
from grpo_pipeline.tasks.data_root import check_root

SECTION, DATA = "attention.predict", "attention.data"


@dataclass(frozen=True)
class CoreRules:
    """Requirements of a model on the files of a biopsy core.

    Attributes:
        preprocessing: how its images were prepared.
        points: k; the region must hold as many cells.
        grid: side of the cell grid.
    """

    preprocessing: ModelPreprocessing
    points: int
    grid: int


@dataclass(frozen=True)
class Columns:
    """The columns that a manifest has.

    Attributes:
        named: the configured columns, None where the manifest has no such column.
        clinical: the model's clinical columns that are there.
        absent: configured or clinical columns that are not there, by name.
    """

    named: PredictColumns
    clinical: tuple[str, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True)
class CoreReading:
    """How the rows of one manifest are read.

    Attributes:
        columns: that it has.
        folders: prefixes of the paths.
        spacing_mm: of images whose file does not tell it, None = unknown.
        workers: threads that check files, None = one per core of the machine.
    """

    columns: Columns
    folders: PredictFolders
    spacing_mm: tuple[float, float] | None = None
    workers: int | None = None


def check_predict_manifest(
    raw: ImageFolder, params: PredictParams, data: DataParams, rules: CoreRules
) -> tuple[pd.DataFrame, pd.DataFrame, tuple[str, ...]]:
    """Check every row and its files.

    Args:
        raw: the data root.
        params: the ``attention.predict`` parameters.
        data: the ``attention.data`` parameters, for names of columns, folders and the spacing.
        rules: of the model.

    Returns:
        checked: one row per usable core, or frame of a core, in manifest order: ``core_id``, of frames ``frame``, ``patient_id,
            image, region_mask, bag_mask``, the model's clinical columns (NaN where unknown), ``spacing_mm, row``.
        quarantine: as ``manifest.check_manifest`` returns it.
        absent: columns that the manifest does not have.

    Raises:
        ValueError: if the root is not the configured one, the image column is missing, a row is bad and ``on_bad_row`` is
            ``fail``, or no row is left.
    """
    check_root(raw.root, params.root, section=SECTION, variable="attention_predict_root")
    folders = PredictFolders.of(data.folders)
    opened = open_rows(
        raw,
        PredictColumns.of(data.columns),
        folders,
        rules.preprocessing.volume,
        may_be_empty=ASKED[1:],
        section=DATA,
    )
    raw = opened.raw
    columns = find_columns(raw.manifest.columns, opened.columns, rules.preprocessing.clinical)
    several = columns.named.frame is not None
    reading = CoreReading(columns, folders, data.spacing_mm)
    rows, refused = check_cores(raw, reading, rules)
    reasons = (
        core_reasons(rows, ("patient_id",), rules.preprocessing, section=DATA)
        if several
        else duplicate_reasons(rows, section=DATA)
    )
    rows, refused = without_refused(rows, refused, reasons)
    if refused and (params.on_bad_row == "fail" or not rows):
        raise ValueError(failure(raw, refused, n_rows=len(raw.manifest), section=SECTION))
    frame = [FRAME_COLUMN] * several
    names = [
        "core_id",
        *frame,
        "patient_id",
        *ASKED,
        *rules.preprocessing.clinical,
        SPACING_COLUMN,
        "row",
    ]
    return (
        pd.DataFrame(rows, columns=names),
        pd.DataFrame(refused, columns=list(QUARANTINE_COLUMNS)),
        columns.absent,
    )


def check_cores(
    raw: ImageFolder, reading: CoreReading, rules: CoreRules
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the usable rows and the refused ones; every clinical column of the model is there, NaN where unknown."""
    columns, preprocessing = reading.columns, rules.preprocessing

    def read(cells: Mapping[str, str]) -> dict[str, Any]:
        return read_core_row(cells, columns, reading.folders, preprocessing)

    name_column = columns.named.core_id or columns.named.image
    rows, refused, _ = check_rows(
        raw, RowReader(preprocessing, read, name_column, reading.spacing_mm, reading.workers)
    )
    usable = []
    for row in rows:
        try:
            check_region(raw, row, rules)
            usable.append(row)
        except RowError as error:
            refused.append(refusal(row, str(error), file=error.file))
    return usable, refused


def find_columns(
    manifest: Iterable[str], columns: PredictColumns, clinical: tuple[str, ...]
) -> Columns:
    """Find out which columns a manifest has; only that of the image must be there.

    Raises:
        ValueError: if the image's column is missing, or another one is and the manifest has one with almost that name: it
            may be misspelt, and then a mask would be ignored without a word.
    """
    there = list(manifest)
    mapped = {
        f"{DATA}.columns.{name}": getattr(columns, name) for name in PredictColumns.model_fields
    }
    wanted = mapped | {f"clinical column {name!r} of the model": name for name in clinical}
    absent = {path: name for path, name in wanted.items() if name is not None and name not in there}
    for path, name in absent.items():
        close = [
            other
            for other in get_close_matches(name, there, n=1, cutoff=0.8)
            if other not in wanted.values()
        ]
        if close or path == f"{DATA}.columns.image":
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"{path} must name a column of the manifest, got {name!r}; it has {there}{hint}"
            )
    found = columns.model_copy(
        update={path.rpartition(".")[2]: None for path in absent if path in mapped}
    )
    return Columns(found, tuple(name for name in clinical if name in there), tuple(absent.values()))


def read_core_row(
    cells: Mapping[str, str],
    columns: Columns,
    folders: PredictFolders,
    preprocessing: ModelPreprocessing,
) -> dict[str, Any]:
    """Turn the text of a row into canonical columns, without opening a file; an empty cell of an optional column is unknown.

    Raises:
        RowError: for the first cell that breaks its rule.
    """
    named = columns.named
    paths = read_paths(cells, named, folders, may_be_empty=("region_mask", "bag_mask"))
    unknown = dict.fromkeys(preprocessing.clinical, float("nan"))
    return {
        "core_id": required(cells, named.core_id, "core_id")
        if named.core_id
        else file_stem(paths["image"]),
        "patient_id": cells[named.patient_id] if named.patient_id else "",
        **unknown,
        **{name: read_number(cells[name], column=name) for name in columns.clinical},
        **addressed(paths, preprocessing),
        "lesion_mask": "",
        **({FRAME_COLUMN: required(cells, named.frame, "frame")} if named.frame else {}),
    }


def check_region(raw: ImageFolder, row: Mapping[str, Any], rules: CoreRules) -> None:
    """Refuse a region, or without one an image, with fewer cells than points are to be placed."""
    path = str(row["region_mask"] or row["image"])
    mask = (
        raw.read_mask(path)
        if row["region_mask"]
        else np.ones([int(side) for side in row[SIZE_COLUMN].split()], bool)
    )
    region = torch.as_tensor(resize_mask(mask, rules.preprocessing.image_size))[None]
    count = int(region_cells(region, rules.grid).sum())
    if count < rules.points:
        raise RowError(
            f"{path!r} must cover at least {rules.points} cells of the model's {rules.grid} x {rules.grid} grid, got {count}; "
            + (
                "draw a larger region"
                if row["region_mask"]
                else "crop it to a shape nearer to a square"
            ),
            file=path,
        )
