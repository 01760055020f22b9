"""Checks of one manifest row and of rows against each other; a refusal is a ``RowError`` with one sentence."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.tasks.attention.data.burnt_in import find_burnt_in
from grpo_pipeline.tasks.attention.data.grey import to_grey8
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.params import (
    BETWEEN_FINDINGS,
    FRAME_COLUMN,
    READER_COLUMN,
    ColumnParams,
    DataParams,
    FolderParams,
    LabelParams,
    Preprocessing,
    canonical_value,
)
from grpo_pipeline.tasks.attention.data.planes import (
    SEVERAL_FILES,
    UnreadableFileError,
    split_address,
    split_key,
    with_address,
    with_values,
)

TRUTH = {"true": 1.0, "false": 0.0}
UNKNOWN = frozenset({"", "nan", "na", "n/a", "null", "none", "?"})
SPLIT_NAMES = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val", "test": "test",
    "testing": "test",
}  # fmt: skip
SIGNIFICANT_GRADE = 2
"""Grade group from which on prostate cancer is called clinically significant (ISUP 2014)."""
PATHS = ("image", "region_mask", "bag_mask", "lesion_mask")


class RowError(ValueError):
    """A row cannot be used; ``file`` is the file at fault, "" where it is the row itself."""

    def __init__(self, reason: str, *, file: str = "") -> None:
        super().__init__(reason)
        self.file = file


@dataclass(frozen=True)
class CheckedMasks:
    """Findings about the pixels of one row: is the bag mask all zero, does the lesion mask hold a lesion, the image's [H, W].

    ``bag_is_lesion``: both masks hold the same pixels, not none, so that the outline is what the losses learn from.

    ``spacing_mm`` is the image's row and column spacing as text, "" where neither the file nor the parameters say. ``shares`` are
    what of the image lies inside each mask, and ``smeared`` the masks whose edge had to be guessed. ``burnt_in`` is
    the share of the image that is drawn and gets filled, None where it is kept.
    """

    bag_is_empty: bool
    has_lesion: bool
    bag_is_lesion: bool
    shape: tuple[int, int]
    spacing_mm: str
    shares: Mapping[str, float]
    smeared: frozenset[str]
    burnt_in: float | None = None


def check_columns(manifest: pd.DataFrame, columns: ColumnParams) -> None:
    """Refuse a manifest that lacks a mapped column.

    Raises:
        ValueError: naming the parameter, the missing column and the columns that are there.
    """
    missing = {
        path: name for path, name in columns.mapped().items() if name not in manifest.columns
    }
    if missing:
        path, name = next(iter(missing.items()))
        more = (
            f" ({len(missing)} mapped columns are missing: {sorted(set(missing.values()))})"
            if len(missing) > 1
            else ""
        )
        raise ValueError(
            f"{path} must name a column of the manifest, got {name!r}{more}; it has {list(manifest.columns)}"
        )


def read_row(cells: Mapping[str, str], params: DataParams) -> dict[str, object]:
    """Turn the text of a row into the canonical columns, without opening a file.

    Raises:
        RowError: for the first cell that breaks its rule.
    """
    columns = params.columns
    paths = read_paths(cells, columns, params.folders, may_be_empty=("lesion_mask",))
    classes, kind = params.label.scheme, {}
    if classes is None:
        label = read_label(cells[columns.label], params.label, column=columns.label)
    else:
        read = read_findings if classes.several else read_class
        number = read(cells[columns.label], params.label, column=columns.label)
        label, kind = classes.label_of(number), {classes.column: number}
    involvement = read_involvement(cells, columns.involvement, unit=params.involvement_unit)
    grade = read_grade(cells, columns.grade_group, values=params.grade_values)
    if params.label.above is None and classes is None:
        check_truth(label, involvement, grade, columns)
    scored = (
        {READER_COLUMN: read_reader(cells, columns.reader_score, values=params.reader_values)}
        if columns.reader_score
        else {}
    )
    return {
        "core_id": required(cells, columns.core_id, "core_id")
        if columns.core_id
        else file_stem(paths["image"]),
        "patient_id": required(cells, columns.patient_id, "patient_id"),
        "center": required(cells, columns.center, "center") if columns.center else "all",
        "label": label,
        "involvement": involvement,
        "grade_group": grade,
        **{name: read_clinical(cells[name], column=name) for name in columns.clinical},
        **addressed(paths, params),
        "split": read_split(cells, columns.split),
        **scored,
        **({FRAME_COLUMN: required(cells, columns.frame, "frame")} if columns.frame else {}),
        **kind,
    }


def read_paths(
    cells: Mapping[str, str],
    columns: ColumnParams | Any,
    folders: FolderParams | Any,
    *,
    may_be_empty: Collection[str],
) -> dict[str, str]:
    """Return the paths below the data root that ``folders`` knows, "" where a file is not given.

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
    """Return the paths with the plane that the parameters ask for, and those of masks with the values that lie inside."""
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
    """Return the files that a cell names: a mask may be drawn in several, ``a.png;b.png``."""
    if name == "image":
        return [cell]
    return [file.strip() for file in cell.split(SEVERAL_FILES)]


def file_stem(path: str) -> str:
    """Return the file name without its ending, ``.nii.gz`` being one ending; of a key in a file, its last part."""
    name, key = split_key(split_address(path)[0])
    return PurePosixPath(key).name if key else PurePosixPath(name.removesuffix(".gz")).stem


def required(cells: Mapping[str, str], column: str, meaning: str) -> str:
    """Return a cell that may not be empty."""
    if cells[column].casefold() in UNKNOWN:
        raise RowError(
            f"column {column!r} must hold the {meaning} of every row, got {cells[column]!r}; fill it in"
        )
    return cells[column]


def read_label(cell: str, rule: LabelParams, *, column: str) -> int:
    """Return 1 for a positive value, 0 for a negative one."""
    if rule.above is not None:
        return label_above(cell, rule.above, column=column)
    value, positive = canonical_value(cell), rule.positive or ()
    if value in set(map(canonical_value, positive)):
        return 1
    allowed = None if rule.negative is None else set(map(canonical_value, rule.negative))
    if value in UNKNOWN or (allowed is not None and value not in allowed):
        known = [*positive, *(rule.negative or ("any other value",))]
        raise RowError(
            f"column {column!r} must be one of {known}, got {cell!r}; correct the row or attention.data.label"
        )
    return 0


def read_class(cell: str, rule: LabelParams, *, column: str) -> int:
    """Return the number of the class that lists the cell's value, in the order of ``rule.classes``."""
    classes = rule.classes or {}
    of_value = {
        canonical_value(value): number
        for number, values in enumerate(classes.values())
        for value in values
    }
    number = of_value.get(canonical_value(cell))
    if number is None:
        known = [value for values in classes.values() for value in values]
        parts = [canonical_value(part) for part in cell.split(BETWEEN_FINDINGS)]
        several = len(parts) > 1 and set(parts) <= of_value.keys()
        remedy = (
            "a row has one class: set attention.data.label.several: true where an image may have several"
            if several
            else "correct the row or attention.data.label.classes"
        )
        raise RowError(f"column {column!r} must be one of {known}, got {cell!r}; {remedy}")
    return number


def read_findings(cell: str, rule: LabelParams, *, column: str) -> int:
    """Return the findings whose values the cell names, ``;`` between them: bit c for the c-th of ``rule.classes``.

    A cell that ``rule.none`` lists has none of them; an empty one is not listed unless it says so.
    """
    parts, none = (
        [canonical_value(part) for part in cell.split(BETWEEN_FINDINGS)],
        set(map(canonical_value, rule.none or ())),
    )
    if len(parts) == 1 and parts[0] in none:
        return 0
    of_value: dict[str, int] = {}
    for number, values in enumerate((rule.classes or {}).values()):
        for value in map(canonical_value, values):
            of_value[value] = of_value.get(value, 0) | 1 << number
    known = list(
        dict.fromkeys(value for values in (rule.classes or {}).values() for value in values)
    )
    if stray := [part for part in parts if part not in of_value]:
        if set(stray) <= none:
            remedy = "a value that means none of them stands alone"
        elif cell.casefold() in UNKNOWN:
            remedy = "list it in attention.data.label.none if it means that there is none of them"
        else:
            remedy = "correct the row or attention.data.label.classes"
        raise RowError(
            f"column {column!r} must name one or several of {known}, {BETWEEN_FINDINGS!r} between them, got {cell!r}; {remedy}"
        )
    if len(set(parts)) < len(parts):
        raise RowError(
            f"column {column!r} must name a value once, got {cell!r}; drop the copy, or correct what it was meant to be"
        )
    return reduce(or_, (of_value[part] for part in parts))


def label_above(cell: str, limit: float, *, column: str) -> int:
    """Return 1 for a number above the limit, 0 for one that is not; an unknown one is refused."""
    value = read_number(cell, column=column)
    if math.isnan(value):
        raise RowError(
            f"column {column!r} must be a number to be above {limit:g} or not, got {cell!r}; fill it in or drop the row"
        )
    return int(value > limit)


def read_number(cell: str, *, column: str) -> float:
    """Return a finite number, NaN for an unknown one."""
    if cell.casefold() in UNKNOWN:
        return math.nan
    try:
        value = float(cell)
    except ValueError:
        value = math.inf
    if not math.isfinite(value):
        raise RowError(
            f"column {column!r} must be a number or empty, got {cell!r}; correct the row"
        )
    return value


def read_clinical(cell: str, *, column: str) -> float:
    """Return a finite number, NaN for an unknown one; true and false are 1 and 0."""
    truth = TRUTH.get(cell.casefold())
    return read_number(cell, column=column) if truth is None else truth


def read_involvement(cells: Mapping[str, str], column: str | None, *, unit: str) -> float:
    """Return the involvement as a fraction, NaN if unknown."""
    if column is None:
        return math.nan
    value = read_number(cells[column], column=column)
    top = 100 if unit == "percent" else 1
    if not math.isnan(value) and not 0 <= value <= top:
        raise RowError(
            f"column {column!r} must be an involvement from 0 to {top}, got {value:g}; "
            "correct the row or attention.data.involvement_unit (fraction or percent)"
        )
    return value / top


def read_grade(
    cells: Mapping[str, str], column: str | None, *, values: Mapping[str, int] | None = None
) -> float:
    """Return the grade group, NaN if unknown; with ``values``, the one that the table gives for the cell."""
    if column is None or (values is not None and cells[column].casefold() in UNKNOWN):
        return math.nan
    if values is not None:
        grade = values.get(canonical_value(cells[column]))
        if grade is None:
            raise RowError(
                f"column {column!r} must be one of {sorted(values)}, got {cells[column]!r}; correct attention.data.grade_values"
            )
        return float(grade)
    value = read_number(cells[column], column=column)
    if not math.isnan(value) and value not in range(6):
        raise RowError(
            f"column {column!r} must be a grade group 0, 1, 2, 3, 4 or 5, got {value:g}; convert Gleason scores first"
        )
    return value


def read_reader(
    cells: Mapping[str, str], column: str, *, values: Mapping[str, float] | None = None
) -> float:
    """Return the score that a reader gave, NaN if there is none; with ``values``, what the table gives for the cell."""
    cell = cells[column]
    if values is None or cell.casefold() in UNKNOWN:
        return read_number(cell, column=column)
    score = values.get(canonical_value(cell))
    if score is None:
        raise RowError(
            f"column {column!r} must be one of {sorted(values)} or empty, got {cell!r}; correct attention.data.reader_values"
        )
    return score


def check_truth(label: int, involvement: float, grade: float, columns: ColumnParams) -> None:
    """Refuse a negative row whose other columns say that there is cancer; an unknown value (NaN) contradicts nothing.

    A grade group of 1 may be negative, where the label means clinically significant cancer; any involvement may not. A label
    that is a number above a limit, or one of several classes, is not checked: there the limit or the class says what is negative.
    """
    if label == 1:
        return
    for column, value, is_cancer in (
        (columns.involvement, involvement, involvement > 0),
        (columns.grade_group, grade, grade >= SIGNIFICANT_GRADE),
    ):
        if is_cancer:
            raise RowError(
                f"column {column!r} must not tell of cancer in a row whose label, {columns.label!r}, is negative, got {value:g}; "
                "correct the row, or set attention.data.label.above to say from which value on a row is positive"
            )


def read_split(cells: Mapping[str, str], column: str | None) -> str:
    """Return train, val or test, "" where the splits are to be drawn."""
    if column is None:
        return ""
    name = SPLIT_NAMES.get(cells[column].casefold())
    if name is None:
        raise RowError(
            f"column {column!r} must be train, val or test, got {cells[column]!r}; correct the row or map no split column"
        )
    return name


def check_files(
    raw: ImageFolder,
    row: Mapping[str, object],
    params: Preprocessing,
    *,
    spacing_mm: tuple[float, float] | None = None,
) -> CheckedMasks:
    """Open the files of a row and check that they belong together; ``spacing_mm`` is that of a file which does not tell it.

    Raises:
        RowError: if a file cannot be read, sizes differ, the region is empty, the bag is empty against ``empty_bag``, or the
            bag and the region do not overlap.
    """
    image_path = str(row["image"])
    try:
        plane = raw.read_plane(image_path, as_mask=False)
        image = to_grey8(plane.values, name=image_path, intensity=params.intensity)
        planes = {name: raw.read_mask_plane(str(row[name])) for name in PATHS[1:] if row[name]}
    except UnreadableFileError as error:
        raise RowError(str(error), file=first_unreadable(raw, row)) from error
    check_contrast(image, plane.values, path=image_path)
    masks = {name: mask.values for name, mask in planes.items()}
    for name, mask in masks.items():
        if planes[name].n_slices not in (1, plane.n_slices):
            raise RowError(
                f"{row[name]!r} must have one slice or those of its image, {plane.n_slices}, got {planes[name].n_slices}; "
                "export it again",
                file=str(row[name]),
            )
        if mask.shape != image.shape:
            size, wanted = (
                f"{mask.shape[1]} x {mask.shape[0]}",
                f"{image.shape[1]} x {image.shape[0]}",
            )
            raise RowError(
                f"{row[name]!r} must have the size of its image, {wanted}, got {size}; export it again",
                file=str(row[name]),
            )
    region = masks.get("region_mask", np.ones(image.shape, bool))
    if not region.any():
        raise RowError(
            f"{row['region_mask']!r} must mark where points may fall, got an empty mask; draw it",
            file=str(row["region_mask"]),
        )
    bag_is_empty = check_bag(
        masks.get("bag_mask"), region, path=str(row["bag_mask"]), empty_bag=params.empty_bag
    )
    has_lesion = "lesion_mask" in masks and bool((masks["lesion_mask"] & region).any())
    bag = masks.get("bag_mask")
    bag_is_lesion = has_lesion and bag is not None and np.array_equal(bag, masks["lesion_mask"])
    spacing = plane.spacing_mm or spacing_mm
    text = "" if spacing is None else f"{spacing[0]:.9g} {spacing[1]:.9g}"
    return CheckedMasks(
        bag_is_empty,
        has_lesion,
        bag_is_lesion,
        (image.shape[0], image.shape[1]),
        text,
        shares={name: float(mask.mean()) for name, mask in masks.items()},
        smeared=frozenset(name for name, plane in planes.items() if plane.is_smeared),
        burnt_in=float(find_burnt_in(image).drawn.mean()) if params.burnt_in == "mask" else None,
    )


def check_contrast(image: np.ndarray, values: np.ndarray, *, path: str) -> None:
    """Refuse an image of one grey level, all black for instance: there is nothing to be seen in it."""
    if image.min() != image.max():
        return
    if values.min() != values.max():
        got = f"values from {values.min():g} to {values.max():g}, which are one of 256 grey levels"
        raise RowError(
            f"{path!r} must show something, got {got}; set attention.data.intensity: minmax",
            file=path,
        )
    raise RowError(
        f"{path!r} must show something, got the value {values.min():g} everywhere; export it again",
        file=path,
    )


def check_bag(bag: np.ndarray | None, region: np.ndarray, *, path: str, empty_bag: str) -> bool:
    """Return whether the bag mask is all zero; refuse that under ``empty_bag: error``, and a bag outside the region always."""
    if bag is None or (bag & region).any():
        return False
    if bag.any():
        raise RowError(
            f"{path!r} must overlap the region mask, got two masks that share no pixel; correct one of them",
            file=path,
        )
    if empty_bag == "error":
        remedy = "draw it or set attention.data.empty_bag: region"
        raise RowError(
            f"{path!r} must mark where the label is known, got an empty mask; {remedy}", file=path
        )
    return True


def first_unreadable(raw: ImageFolder, row: Mapping[str, object]) -> str:
    """Return the path of the first file of a row that cannot be read; the image where only its values are refused."""
    for name in PATHS:
        try:
            if row[name]:
                raw.read_mask(str(row[name]))
        except UnreadableFileError:
            return str(row[name])
    return str(row["image"])


def duplicate_reasons(
    rows: Iterable[Mapping[str, Any]], *, section: str = "attention.data"
) -> dict[int, str]:
    """Return line -> reason for every row whose core id occurs more than once: none of them can be trusted."""
    lines: dict[str, list[int]] = {}
    for row in rows:
        lines.setdefault(row["core_id"], []).append(row["row"])
    remedy = (
        f"rename them, map {section}.columns.core_id to a column of unique names, or map {section}.columns.frame where they are "
        "pictures of one core"
    )
    return {
        line: f"core id {core_id!r} must be unique, got it in lines {found}; {remedy}"
        for core_id, found in lines.items()
        if len(found) > 1
        for line in found
    }


def split_reasons(rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return line -> reason for every row of a patient that the manifest puts in two splits."""
    splits: dict[str, set[str]] = {}
    for row in rows:
        splits.setdefault(row["patient_id"], set()).add(row["split"])
    shared = {patient: sorted(names) for patient, names in splits.items() if len(names) > 1}
    return {
        row[
            "row"
        ]: f"patient {row['patient_id']!r} must be in one split, got {shared[row['patient_id']]}; move all its rows to one"
        for row in rows
        if row["patient_id"] in shared
    }
