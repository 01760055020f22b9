"""Check a manifest against its files: usable rows in canonical columns, refused rows with reasons, and a report."""

import logging
from collections.abc import Mapping
from functools import partial

import pandas as pd

from grpo_pipeline.tasks.attention.data.cases import open_rows
from grpo_pipeline.tasks.attention.data.checked_rows import RowReader, check_rows
from grpo_pipeline.tasks.attention.data.class_checks import check_classes
from grpo_pipeline.tasks.attention.data.contradictions import (
    core_reasons,
    duplicate_reasons,
    split_reasons,
)
from grpo_pipeline.tasks.attention.data.data_report import data_report
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.quarantine import (
    QUARANTINE_COLUMNS,
    describe_bad,
    refuse_rows,
    without_refused,
)
from grpo_pipeline.tasks.attention.data.row_checks import check_columns
from grpo_pipeline.tasks.attention.data.splits_file import named_splits, read_split_row
from grpo_pipeline.tasks.attention.data.table_columns import (
    CANONICAL_COLUMNS,
    FRAME_COLUMN,
    READER_COLUMN,
    SIZE_COLUMN,
    SPACING_COLUMN,
)
from grpo_pipeline.tasks.attention.data.unnamed_masks import unnamed_masks, warn_of_unnamed
from grpo_pipeline.tasks.data_root import check_root
from grpo_pipeline.tasks.refusals import after_refusals

logger = logging.getLogger(__name__)

CORE_FACTS = ("patient_id", "center", "label", "involvement", "grade_group", "split")
"""Canonical columns that must be the same in all rows of a core."""


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
    check_root(raw.root, params.root, section="attention.data", variable="attention_root")
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
