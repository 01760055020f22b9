"""Read the text of a row into canonical columns."""

import math
from collections.abc import Mapping
from functools import reduce
from operator import or_

import pandas as pd

from grpo_pipeline.tasks.attention.data.cell_values import canonical_value
from grpo_pipeline.tasks.attention.data.column_params import ColumnParams
from grpo_pipeline.tasks.attention.data.label_params import BETWEEN_FINDINGS, LabelParams
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.row_paths import addressed, file_stem, read_paths
from grpo_pipeline.tasks.attention.data.rows import RowError
from grpo_pipeline.tasks.attention.data.table_columns import FRAME_COLUMN, READER_COLUMN
from grpo_pipeline.tasks.splits import SPLIT_OF

TRUTH = {"true": 1.0, "false": 0.0}

UNKNOWN = frozenset({"", "nan", "na", "n/a", "null", "none", "?"})

SIGNIFICANT_GRADE = 2
"""Grade group from which on prostate cancer is called clinically significant (ISUP 2014)."""


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


def required(cells: Mapping[str, str], column: str, meaning: str) -> str:
    """Read a cell that may not be empty."""
    if cells[column].casefold() in UNKNOWN:
        raise RowError(
            f"column {column!r} must hold the {meaning} of every row, got {cells[column]!r}; fill it in"
        )
    return cells[column]


def read_label(cell: str, rule: LabelParams, *, column: str) -> int:
    """Read a label: 1 for a positive value, 0 for a negative one."""
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
    """Read the number of the class that lists the cell's value, in the order of ``rule.classes``."""
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
    """Read the findings of a cell, separated by ``;``: bit c for the c-th of ``rule.classes``.

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
    """Read a label by a limit: 1 for a number above it, else 0; an unknown number is refused."""
    value = read_number(cell, column=column)
    if math.isnan(value):
        raise RowError(
            f"column {column!r} must be a number to be above {limit:g} or not, got {cell!r}; fill it in or drop the row"
        )
    return int(value > limit)


def read_number(cell: str, *, column: str) -> float:
    """Read a finite number, NaN for an unknown one."""
    if cell.casefold() in UNKNOWN:
        return math.nan
    try:
        value = float(cell)
    except ValueError:
        value = math.inf
    if not math.isfinite(value):
        is_comma = cell.count(",") == 1 and is_number(cell.replace(",", "."))
        remedy = "write a decimal point" if is_comma else "correct the row"
        raise RowError(f"column {column!r} must be a number or empty, got {cell!r}; {remedy}")
    return value


def is_number(text: str) -> bool:
    """Check whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_clinical(cell: str, *, column: str) -> float:
    """Read a finite number, NaN for an unknown one; true and false are 1 and 0."""
    truth = TRUTH.get(cell.casefold())
    return read_number(cell, column=column) if truth is None else truth


def read_involvement(cells: Mapping[str, str], column: str | None, *, unit: str) -> float:
    """Read the involvement as a fraction, NaN if unknown."""
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
    """Read the grade group, NaN if unknown; ``values`` maps cells to grade groups."""
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
    """Read the score of a reader, NaN without a score; ``values`` maps cells to scores."""
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
    """Refuse a negative row whose other columns state cancer; an unknown value (NaN) contradicts nothing.

    A grade group of 1 may be negative, because the label may mean clinically significant cancer. Involvement may not. A label by
    a limit or by several classes is not checked: there the limit or the class defines what is negative.
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
    """Read train, val or test, "" if the splits are to be drawn."""
    if column is None:
        return ""
    name = SPLIT_OF.get(cells[column].casefold())
    if name is None:
        raise RowError(
            f"column {column!r} must be train, val or test, got {cells[column]!r}; correct the row or map no split column"
        )
    return name
