"""Find rows that contradict each other, with the reason."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from grpo_pipeline.tasks.attention.data.case_folders import SHOWN
from grpo_pipeline.tasks.attention.data.preprocessing_params import Preprocessing
from grpo_pipeline.tasks.attention.data.table_columns import FRAME_COLUMN, SIZE_COLUMN


def duplicate_reasons(
    rows: Iterable[Mapping[str, Any]], *, section: str = "attention.data"
) -> dict[int, str]:
    """Map line -> reason for every row whose core id occurs more than once: none of these rows can be trusted."""
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
    """Map line -> reason for every row of a patient that the manifest puts in two splits."""
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


def core_reasons(
    rows: Sequence[Mapping[str, Any]],
    facts: Collection[str],
    preprocessing: Preprocessing,
    *,
    section: str,
) -> dict[int, str]:
    """Map line -> reason for all rows of a core with a repeated frame, different facts, or frames of several sizes."""
    cores: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        cores.setdefault(row["core_id"], []).append(row)
    reasons: dict[int, str] = {}
    for core_id, own in cores.items():
        if (reason := core_fault(core_id, own, facts, preprocessing, section=section)) is not None:
            reasons |= dict.fromkeys((row["row"] for row in own), reason)
    return reasons


def core_fault(
    core_id: str,
    rows: Sequence[Mapping[str, Any]],
    facts: Collection[str],
    preprocessing: Preprocessing,
    *,
    section: str,
) -> str | None:
    """Write why the rows cannot be frames of the same core; None if they can."""
    seen: dict[str, int] = {}
    for row in rows:
        if row[FRAME_COLUMN] in seen:
            lines = [seen[row[FRAME_COLUMN]], row["row"]]
            return (
                f"frame {row[FRAME_COLUMN]!r} of core {core_id!r} must be there once, got it in rows {lines}; name the frames "
                f"apart ({section}.columns.frame)"
            )
        seen[row[FRAME_COLUMN]] = row["row"]
    for fact in facts:
        # Unknown numbers count as equal.
        found = sorted({"unknown" if row[fact] != row[fact] else str(row[fact]) for row in rows})
        if len(found) > 1:
            return (
                f"core {core_id!r} must have one {fact} in all its frames, got {', '.join(found[:SHOWN])}; correct its rows, or "
                "give them core ids of their own"
            )
    sizes = {row[SIZE_COLUMN]: row for row in reversed(rows)}
    if len(sizes) > 1 and preprocessing.frame_sizes == "one":
        got = " and ".join(
            f"{width} x {height} ({row['image']!r})"
            for size, row in reversed(list(sizes.items())[-2:])
            for height, width in (size.split(),)
        )
        return (
            f"frames of core {core_id!r} must have one size, got {got}; crop them alike, or set "
            "attention.data.frame_sizes: any"
        )
    return None
