"""Check a manifest against its files: usable rows in canonical columns, refused rows with reasons, and a report."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.runs.lookahead import map_ahead, usable_cores
from grpo_pipeline.runs.progress import track
from grpo_pipeline.tasks.attention.data.cases import open_rows
from grpo_pipeline.tasks.attention.data.contradictions import (
    core_reasons,
    duplicate_reasons,
    split_reasons,
)
from grpo_pipeline.tasks.attention.data.core_frames import core_rows
from grpo_pipeline.tasks.attention.data.file_checks import (
    CheckedMasks,
    Row,
    RowError,
    check_files,
    count_shared,
    describe_masks,
    unnamed_masks,
    warn_of_dark,
    warn_of_masks,
    warn_of_statements,
    warn_of_unnamed,
)
from grpo_pipeline.tasks.attention.data.file_digests import files_digest, manifest_digest
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.params import (
    BETWEEN_FINDINGS,
    CANONICAL_COLUMNS,
    CLASS_COLUMN,
    FINDINGS_COLUMN,
    FRAME_COLUMN,
    PATHS,
    READER_COLUMN,
    SIZE_COLUMN,
    SPACING_COLUMN,
    Classes,
    DataParams,
    Preprocessing,
    canonical_value,
)
from grpo_pipeline.tasks.attention.data.planes import split_address, split_values
from grpo_pipeline.tasks.attention.data.row_checks import check_columns
from grpo_pipeline.tasks.attention.data.splits_file import SHOWN, named_splits, read_split_row
from grpo_pipeline.tasks.attention.data.statements import describe_statements
from grpo_pipeline.tasks.refusals import after_refusals, describe_refusals

logger = logging.getLogger(__name__)
CORE_FACTS = ("patient_id", "center", "label", "involvement", "grade_group", "split")
"""Canonical columns that must be the same in all rows of a core."""
QUARANTINE_COLUMNS = ("row", "core_id", "file", "reason")
NUMBERS = ("involvement", "grade_group")


@dataclass(frozen=True)
class RowReader:
    """The parameters for reading the rows of a manifest.

    Attributes:
        preprocessing: how their files are read.
        read: turns the text of a row into canonical columns, or raises ``RowError``.
        name_column: what a row that may be bad is called by in messages.
        spacing_mm: of images whose file does not tell it, None = unknown.
        workers: threads that read files, None = one per core of the machine.
    """

    preprocessing: Preprocessing
    read: Callable[[Mapping[str, str]], Row]
    name_column: str
    spacing_mm: tuple[float, float] | None
    workers: int | None = None


def check_manifest(
    raw: ImageFolder, generated: Mapping[str, object], params: DataParams
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, object]]:
    """Sort the rows, and stop if bad rows are not tolerated. Arguments and results as ``sort_manifest``.

    Raises:
        ValueError: also if a row is bad and ``on_bad_row`` is ``fail``, or no row is left.
    """
    found = sort_manifest(raw, generated, params)
    refuse_rows(raw, found[0], found[1], params)
    return found


def sort_manifest(
    raw: ImageFolder, generated: Mapping[str, object], params: DataParams
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, object]]:
    """Check every row and its files; bad rows are listed and do not stop this.

    Args:
        raw: the data root.
        generated: report of ``generate_phantom``, which runs before this check.
        params: the ``attention.data`` parameters.

    Returns:
        checked: canonical columns (docs/attention/artefacts.md), a row per usable core, in manifest order. Unknown clinical
            values are NaN.
        quarantine: ``row, core_id, file, reason`` of each refused row.
        data_report: counts, unknown values, replaced bags and digests.

    Raises:
        ValueError: if the root differs from the parameters', a mapped column is missing, or usable rows lack a class.
    """
    check_root(raw, params.root, section="attention.data", variable="attention_root")
    check_generated(raw, generated, params)
    opened = open_rows(
        raw,
        params.columns,
        params.folders,
        params.volume,
        may_be_empty=("lesion_mask",),
        section="attention.data",
    )
    raw, params = opened.raw, params.model_copy(update={"columns": opened.columns})
    check_columns(raw.manifest, params.columns)
    name_column, split_of = (
        params.columns.core_id or params.columns.image,
        named_splits(raw, params),
    )
    read = partial(read_split_row, params=params, split_of=split_of)
    rows, refused, found = check_rows(raw, RowReader(params, read, name_column, params.spacing_mm))
    several = params.columns.frame is not None
    told = (params.label.scheme.column,) if params.label.scheme else ()
    facts = (*CORE_FACTS, *told)
    of_cores = (
        core_reasons(rows, facts, params, section="attention.data")
        if several
        else duplicate_reasons(rows)
    )
    reasons = of_cores | (split_reasons(rows) if params.names_splits else {})
    unnamed = unnamed_masks(raw, params)
    warn_of_unnamed(unnamed)
    for name, files in unnamed.items():
        if name in found["masks"]:
            found["masks"][name]["unnamed"] = len(files)
    rows, refused = without_refused(rows, refused, reasons)
    quarantine = pd.DataFrame(refused, columns=list(QUARANTINE_COLUMNS))
    if said := describe_bad(raw, quarantine, n_left=len(raw.manifest) - len(refused)):
        logger.warning("%s; attention.quarantine lists them all", said)
    # Generated labels cannot be misspelt, and bad rows stop the run anyway.
    if params.source != "phantom" and not (refused and (params.on_bad_row == "fail" or not rows)):
        with after_refusals(said):
            check_classes(raw, rows, params)
    # The canonical columns in order, clinical ones after the grade group, size and spacing last if any file has one.
    names = list(CANONICAL_COLUMNS if params.names_splits else CANONICAL_COLUMNS[:-1])
    names[1:1] = [FRAME_COLUMN] if several else []
    names += told
    names += [READER_COLUMN] if params.columns.reader_score else []
    names += [SIZE_COLUMN, SPACING_COLUMN] if any(row[SPACING_COLUMN] for row in rows) else []
    after = names.index("grade_group") + 1
    columns = [*names[:after], *params.columns.clinical, *names[after:]]
    checked = pd.DataFrame(rows, columns=columns)
    return checked, quarantine, data_report(raw, checked, quarantine, found=found, params=params)


def describe_bad(raw: ImageFolder, quarantine: pd.DataFrame, *, n_left: int) -> str:
    """Write how many rows were refused and why the first was."""
    where = ""
    if len(quarantine):
        where = f"{raw.where(int(quarantine['row'].iloc[0]))} ({quarantine['core_id'].iloc[0]})"
    return describe_refusals(quarantine, n_left=n_left, where=where)


def refuse_rows(
    raw: ImageFolder, checked: pd.DataFrame, quarantine: pd.DataFrame, params: DataParams
) -> None:
    """Stop if bad rows are not tolerated, once they are listed.

    Raises:
        ValueError: if a row is bad and ``on_bad_row`` is ``fail``, or none is left; names the first one.
    """
    if len(quarantine) and (params.on_bad_row == "fail" or not len(checked)):
        refused = quarantine.to_dict("records")
        raise ValueError(failure(raw, refused, n_rows=len(raw.manifest), n_left=len(checked)))


def check_root(raw: ImageFolder, root: str, *, section: str, variable: str) -> None:
    """Refuse a data root other than the parameters'.

    Args:
        raw: the data root that the catalogue has opened.
        root: the data root in the parameters.
        section: section of the parameters.
        variable: variable of globals.yml, which both read.
    """
    named = tuple(part for part in PurePath(root).parts if part not in ("..", "."))
    if (
        raw.root.parts[len(raw.root.parts) - len(named) :] != named
        and raw.root.resolve() != Path(root).resolve()
    ):
        raise ValueError(
            f"{section}.root must be the folder of the dataset {section.removesuffix('.data')}.raw, {raw.root}, got {root!r}; "
            f"set {variable} in globals.yml, which both read"
        )


def check_generated(raw: ImageFolder, generated: Mapping[str, object], params: DataParams) -> None:
    """Refuse a user's folder if the parameters ask for the phantom, and a layout other than the configured one."""
    if bool(raw.cases) != (params.source == "case_folders"):
        layout = "'*/info.json'" if params.source == "case_folders" else "the name of a CSV file"
        raise ValueError(
            f"attention_manifest must be {layout} while attention.data.source is {params.source}, got "
            f"{str(raw.manifest_path)!r}; set it in globals.yml, or change the source"
        )
    if params.source == "phantom" and generated.get("cores") != len(raw.manifest):
        raise ValueError(
            f"{raw.root} must hold the {generated.get('cores')} generated cores while attention.data.source is phantom, "
            f"got {len(raw.manifest)} rows; set attention.data.source: manifest to read your own data"
        )


def check_classes(raw: ImageFolder, rows: Sequence[Row], params: DataParams) -> None:
    """Refuse labels that leave a class without a row; log listed values that no row has, which may be misspelt.

    Args:
        raw: the data root; its label column is that of all rows.
        rows: those that can be used.
        params: with the label rule.

    Raises:
        ValueError: naming the class, its rule and the values that are there.
    """
    label, held = params.label, set(raw.manifest[params.columns.label])
    there = sorted(held - {""})
    shown = f"{there[: 2 * SHOWN]}" + (
        f" and {len(there) - 2 * SHOWN} more" * (len(there) > 2 * SHOWN)
    )
    cells = [cell.split(BETWEEN_FINDINGS) if label.several else [cell] for cell in held]
    known = {canonical_value(part) for parts in cells for part in parts}
    # Name of each class, whether the usable rows have it, and its cells.
    kinds: list[tuple[str, bool, tuple[str, ...] | None]] = [
        ("positive", any(row["label"] == 1 for row in rows), label.positive),
        ("negative", any(row["label"] == 0 for row in rows), label.negative),
    ]
    if label.classes is not None and (scheme := label.scheme) is not None:
        kinds = [
            (
                f"classes.{name}",
                any(scheme.is_of(row[scheme.column], number) for row in rows),
                values,
            )
            for number, (name, values) in enumerate(label.classes.items())
        ]
        kinds += [("none", True, label.none)] * label.several
    for name, is_there, listed in kinds:
        rule = f"above {label.above:g}" if label.above is not None else listed
        if not is_there:
            raise ValueError(
                f"attention.data.label must leave each class a row, got no usable {name} one ({rule or 'any other value'}) while "
                f"column {params.columns.label!r} holds {shown}; correct the rule or add such rows to {raw.manifest_path}"
            )
        if absent := [cell for cell in listed or () if canonical_value(cell) not in known]:
            logger.warning(
                "attention.data.label.%s names %s, which no row has: column %r holds %s",
                *(name, absent, params.columns.label, shown),
            )


def check_rows(raw: ImageFolder, reader: RowReader) -> tuple[list[Row], list[Row], dict[str, Any]]:
    """Check all rows: returns usable rows, refused rows with their reasons, and the description of the masks."""
    lines, workers = list(raw.manifest.itertuples()), reader.workers or usable_cores()
    found = map_ahead(
        partial(check_row, raw, reader=reader), lines, workers=workers, ahead=4 * workers
    )
    with closing(found):
        results = list(track(found, "check images", total=len(lines)))
    usable = [(row, masks) for row, masks in results if masks is not None]
    rows = [
        row | {"bag_mask": "" if masks.bag_is_empty else row["bag_mask"]} for row, masks in usable
    ]
    refused = [row for row, masks in results if masks is None]
    described: dict[str, Any] = {
        "bags_replaced_by_region": sum(masks.bag_is_empty for _, masks in usable),
        "bags_that_are_the_lesion_outline": sum(masks.bag_is_lesion for _, masks in usable),
        "masks": {
            name: describe_masks(
                [masks.shares[name] for _, masks in usable if name in masks.shares],
                smeared=sum(name in masks.smeared for _, masks in usable),
                shared=count_shared(name, usable),
                missed=sum(name in masks.missed for _, masks in usable),
            )
            for name in PATHS[1:]
            if any(name in masks.shares for _, masks in usable)
        },
    }
    if said := describe_statements(one for _, masks in usable for one in masks.statements):
        described["statements"] = said
    warn_of_masks(described["masks"])
    warn_of_statements(said)
    warn_of_dark([masks.is_dark for _, masks in usable])
    return rows, refused, described


def check_row(
    raw: ImageFolder, line: tuple[Any, ...], *, reader: RowReader
) -> tuple[Row, CheckedMasks | None]:
    """Check a row: returns it with the findings about its files, or its quarantine entry and None."""
    number, *texts = line
    cells = dict(zip(raw.manifest.columns, texts, strict=True))
    row: Row = {"core_id": cells[reader.name_column], "row": int(number)}
    if (fault := raw.faults.get(int(number))) is not None:
        return refusal(row, fault), None
    try:
        row |= reader.read(cells)
        masks = check_files(raw, row, reader.preprocessing, spacing_mm=reader.spacing_mm)
    except RowError as error:
        return refusal(row, str(error), file=split_address(split_values(error.file)[0])[0]), None
    size = f"{masks.shape[0]} {masks.shape[1]}"
    return row | {
        "has_lesion_mask": masks.has_lesion,
        SIZE_COLUMN: size,
        SPACING_COLUMN: masks.spacing_mm,
    }, masks


def without_refused(
    rows: Sequence[Row], refused: Sequence[Row], reasons: Mapping[int, str]
) -> tuple[list[Row], list[Row]]:
    """Drop the rows whose line has a reason for refusal; returns the others, and all quarantine entries by line."""
    # A single entry for a line, which may hold several frames.
    more = {row["row"]: refusal(row, reasons[row["row"]]) for row in rows if row["row"] in reasons}
    entries = sorted([*refused, *more.values()], key=lambda entry: entry["row"])
    return [row for row in rows if row["row"] not in reasons], entries


def refusal(row: Mapping[str, object], reason: str, *, file: str = "") -> Row:
    """Return the quarantine entry of a row."""
    return {"row": row["row"], "core_id": row["core_id"], "file": file, "reason": reason}


def failure(
    raw: ImageFolder,
    refused: Sequence[Mapping[Any, Any]],
    *,
    n_rows: int,
    n_left: int = 1,
    section: str = "attention.data",
) -> str:
    """Write the first bad row, the number of the others, and the remedy."""
    first = refused[0]
    where = f"{raw.where(int(first['row']))} ({first['core_id']})"
    if len(refused) == n_rows or not n_left:
        return f"{where}: {first['reason']} (all {n_rows} rows are bad, there is nothing to go on with)"
    remedy = f"correct them, or set {section}.on_bad_row: quarantine to go on without them"
    return f"{where}: {first['reason']} ({len(refused)} of {n_rows} rows are bad: {remedy})"


def parse_checked(table: pd.DataFrame, params: DataParams) -> pd.DataFrame:
    """Restore the types of a table that was read back as text; a typed table comes back equal."""
    numbers = {name: to_floats(table[name]) for name in number_columns(params)}
    whole = ("label", "row", *(n for n in (CLASS_COLUMN, FINDINGS_COLUMN) if n in table))
    integers = {name: table[name].astype(int) for name in whole}
    flags = {"has_lesion_mask": table["has_lesion_mask"].astype(str) == "True"}
    return table.assign(**numbers, **integers, **flags)


def number_columns(params: DataParams) -> tuple[str, ...]:
    """Return the columns of the checked table whose numbers may be unknown."""
    scored = (READER_COLUMN,) if params.columns.reader_score else ()
    return (*NUMBERS, *params.columns.clinical, *scored)


def to_floats(column: pd.Series) -> pd.Series:
    """Return a column of numbers or of their text as float64, digit for digit; "" is NaN."""
    return column.map(lambda cell: float(cell) if cell != "" else np.nan).astype(np.float64)


def data_report(
    raw: ImageFolder,
    checked: pd.DataFrame,
    quarantine: pd.DataFrame,
    *,
    found: Mapping[str, Any],
    params: DataParams,
) -> dict[str, object]:
    """Count rows, cores, classes and masks, as plain JSON values."""
    cores = core_rows(checked)
    return {
        "root": str(raw.root),
        "manifest": raw.manifest_path.name,
        "rows": len(raw.manifest),
        "usable": len(checked),
        "quarantined": len(quarantine),
        "patients": int(checked["patient_id"].nunique()),
        **({"cores": len(cores), "frames": len(checked)} if FRAME_COLUMN in checked else {}),
        "cores_by_label": {
            str(k): int(v) for k, v in cores["label"].value_counts().sort_index().items()
        },
        **(
            {}
            if params.label.scheme is None
            else {"classes": count_classes(cores, params.label.scheme)}
        ),
        **({"findings_per_core": count_findings(cores)} if params.label.several else {}),
        "cores_by_center": {
            str(k): int(v) for k, v in cores["center"].value_counts().sort_index().items()
        },
        "lesion_masks": int(checked["has_lesion_mask"].sum()),
        **(describe_spacing(checked[SPACING_COLUMN]) if SPACING_COLUMN in checked else {}),
        **found,
        "unknown": {name: int(checked[name].isna().sum()) for name in number_columns(params)},
        "imputation": "none: unknown clinical values stay unknown (attention.imputation describes the training split)",
        "digests": {
            "manifest": manifest_digest(raw),
            "files": files_digest(raw, checked, params),
        },
    }


def describe_spacing(spacings: pd.Series) -> dict[str, object]:
    """Describe for how many images the pixel size is known, and the consequence for the others."""
    unknown = int((spacings == "").sum())
    without = "distances are unknown"
    counts: dict[str, object] = {"known": len(spacings) - unknown, "unknown": unknown}
    return {"spacing": counts | ({"without": without} if unknown else {})}


def count_classes(cores: pd.DataFrame, classes: Classes) -> dict[str, dict[str, int]]:
    """Count the cores and patients of each class, with its label."""
    counts = {}
    for number, (name, label) in enumerate(zip(classes.names, classes.is_positive, strict=True)):
        patients = cores.loc[classes.is_of(cores[classes.column], number), "patient_id"]
        counts[name] = {
            "label": int(label),
            "cores": len(patients),
            "patients": int(patients.nunique()),
        }
    return counts


def count_findings(cores: pd.DataFrame) -> dict[str, int]:
    """Count the cores by their number of findings."""
    numbers = cores[FINDINGS_COLUMN].map(int.bit_count)
    return {str(k): int(v) for k, v in numbers.value_counts().sort_index().items()}
