"""List refused rows with their reasons, and stop where they are not tolerated."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.rows import Row
from grpo_pipeline.tasks.refusals import describe_failure, describe_refusals

QUARANTINE_COLUMNS = ("row", "core_id", "file", "reason")


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
    return describe_failure(
        where,
        first["reason"],
        n_refused=len(refused),
        n_rows=n_rows,
        n_left=n_left,
        section=section,
    )
