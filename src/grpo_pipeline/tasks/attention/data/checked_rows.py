"""Check the rows of a manifest with their files, several at a time."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from grpo_pipeline.runs.lookahead import map_ahead, usable_cores
from grpo_pipeline.runs.progress import track
from grpo_pipeline.tasks.attention.data.file_checks import CheckedMasks, check_files
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.mask_summary import (
    count_shared,
    describe_masks,
    warn_of_masks,
)
from grpo_pipeline.tasks.attention.data.planes import split_address, split_values
from grpo_pipeline.tasks.attention.data.preprocessing_params import Preprocessing
from grpo_pipeline.tasks.attention.data.quarantine import refusal
from grpo_pipeline.tasks.attention.data.rows import Row, RowError
from grpo_pipeline.tasks.attention.data.statements import describe_statements, warn_of_statements
from grpo_pipeline.tasks.attention.data.table_columns import PATHS, SIZE_COLUMN, SPACING_COLUMN

logger = logging.getLogger(__name__)


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


def warn_of_dark(are_dark: Sequence[bool | None]) -> None:
    """Log that all images of 16 bits use only 12 bits or fewer; None stands for an image of another type."""
    deep = [is_dark for is_dark in are_dark if is_dark is not None]
    if deep and all(deep):
        logger.warning(
            "All %d images of 16 bits use less than a sixteenth of their range, as 10 and 12 bits do, and are nearly black with "
            "intensity: dtype; train with attention.data.intensity: minmax",
            len(deep),
        )
