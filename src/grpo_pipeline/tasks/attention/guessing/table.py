"""Describe a table with a row per image."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_pipeline.tasks.attention.data.row_paths import file_stem
from grpo_pipeline.tasks.attention.guessing.environment import describe
from grpo_pipeline.tasks.attention.guessing.mask_files import MASKS, mask_of
from grpo_pipeline.tasks.attention.guessing.positive_values import MOST_CLASSES
from grpo_pipeline.tasks.new_data import Found, Hints, Table, UnclearDataError, column_of
from grpo_pipeline.tasks.splits import SPLIT_OF

NAMES = {
    "label": (
        "label",
        "class",
        "diagnosis",
        "pathology",
        "target",
        "category",
        "histology",
        "malignancy",
        "y",
        "result",
        "dx",
    ),
    "patient_id": (
        "patient_id",
        "patient",
        "subject",
        "subject_id",
        "case",
        "case_id",
        "person",
        "pid",
        "lesion_id",
        "similarity_group",
        "group",
    ),
    "center": ("center", "centre", "site", "hospital", "institution", "scanner"),
    "split": ("split", "fold", "subset", "partition", "set", "part"),
    "involvement": ("involvement", "cancer_percent", "percent_cancer"),
    "grade_group": ("grade_group", "isup", "isup_grade", "gleason_grade_group"),
    "core_id": ("core_id", "core", "image_id", "id"),
}


def of_table(
    table: Table, places: Mapping[str, Counter[str]], files: Sequence[str], hints: Hints
) -> Found:
    """Describe a table; ``places`` are the folders below which the cells of each column name files."""
    columns: dict[str, str | None] = dict.fromkeys(("image", *MASKS))
    folders = dict.fromkeys(("image", *MASKS), "")
    named = [
        (column, place) for column, found in places.items() for place, _ in found.most_common()
    ]
    # A lone folder holds the images, whatever it is called: tumor_images, say. Beside other images it does not.
    if len(named) == 1 and "image" not in hints.columns:
        _refuse_lone_masks(table, *named[0], files)
    for column, place in named:
        mask = mask_of(f"{column if place == '' else ''} {place}") if len(named) > 1 else None
        key = mask or "image"
        if columns[key] is None:
            columns[key], folders[key] = column, place
    for key in ("image", *MASKS):
        if (chosen := column_of(table.columns, key, (), hints)) is not None:
            columns[key] = chosen
            folders[key] = next((place for place, _ in places[chosen].most_common()), "")
    if columns["image"] is None:
        raise UnclearDataError(
            f"{table.name} must have a column with files of images below the folder, got {', '.join(table.columns)}, and none of "
            f"them names a file such as {files[0]}; name it: --column image=<column>"
        )
    taken = {columns[key] for key in columns}
    rest = [column for column in table.columns if column not in taken]
    for key, names in NAMES.items():
        columns[key] = column_of(table.columns if key in hints.columns else rest, key, names, hints)
    if columns["split"] and not {value.lower() for value in table.values(columns["split"])} <= {
        *SPLIT_OF
    }:
        columns["split"] = None
    columns["core_id"] = _unique(table, columns["core_id"], columns["image"])
    label = columns["label"] or _only_label(table, rest, [c for c in columns.values() if c])
    numeric = [
        c for c in rest if c not in {*columns.values(), label} and _is_numeric(table.columns[c])
    ]
    described: dict[str, str | None] = {**columns, "label": label}
    note = f"{table.rows} rows of {Path(table.name).name}, {len(files)} image files"
    return describe(
        described,
        folders,
        table.values(label),
        hints,
        note=note,
        manifest=table.name,
        numeric=numeric,
    )


def _refuse_lone_masks(table: Table, column: str, place: str, files: Sequence[str]) -> None:
    """Refuse masks in the place of images, which the table does not name."""
    cells = {
        f"{place}/{c.strip()}".lstrip("/") for one in table.columns[column] for c in one.split(";")
    }
    homes = {Path(cell).parent for cell in cells}
    others = [file for file in files if file not in cells]
    if not mask_of(column):  # a folder may be called after what its images show
        others = [file for file in others if Path(file).parent not in homes and mask_of(place)]
    if others:
        raise UnclearDataError(
            f"{table.name} must name the image of each row, got {column!r}, which seems to name masks, and no column that names "
            f"{others[0]}; add one, or, if these are the images: --column image={column}"
        )


def _only_label(table: Table, columns: Sequence[str], taken: Sequence[str]) -> str:
    most = min(MOST_CLASSES, table.rows // 2)  # a name of each row is no class
    found = [c for c in columns if c not in taken and 2 <= len(table.values(c)) <= most]
    if len(found) > 1 and _are_one_class_each(table, found):
        raise UnclearDataError(
            f"{', '.join(found)} have 1 where a row is of that class; name what is to be told from the others: "
            f"--column label={found[0]}"
        )
    if len(found) != 1:
        raise UnclearDataError(
            f"{table.name} must have a column with the label, got {', '.join(table.columns)}, of which "
            f"{', '.join(found) or 'none'} may be one; name it: --column label=<column>"
        )
    return found[0]


def _are_one_class_each(table: Table, columns: Sequence[str]) -> bool:
    """Check whether each row has 1 in one of the columns, and 0 in the others."""
    rows = zip(*(table.columns[column] for column in columns), strict=True)
    marks = (sorted(cell.removesuffix(".0") for cell in row) for row in rows)
    return all(row == ["0"] * (len(columns) - 1) + ["1"] for row in marks)


def _unique(table: Table, column: str | None, image: str) -> str | None:
    """Choose the column of unique names: the named one, none if the files' own names are unique, else that of the files."""
    if column is not None and len(set(table.columns[column])) == table.rows:
        return column
    return None if len({file_stem(c) for c in table.columns[image]}) == table.rows else image


def _is_numeric(cells: Sequence[str]) -> bool:
    known = [cell for cell in cells if cell]
    try:
        return len({float(cell) for cell in known}) > 2
    except ValueError:
        return False
