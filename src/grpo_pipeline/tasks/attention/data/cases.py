"""Open a data set as rows with a picture each, from a manifest, folders of cases or files with frames.

A folder per case (``<case>/image.png``, masks, ``info.json``) becomes the row, or the rows, of a manifest. A file with several
frames becomes a row for each wanted frame. Only names and headers are read here; pixels are read when a row is checked or built.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from grpo_pipeline.tasks.attention.data.case_folders import CASE, FRAME, open_cases
from grpo_pipeline.tasks.attention.data.cine_files import expand_frames
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.volume_params import VolumeParams


@dataclass(frozen=True)
class Opened:
    """A data set whose rows are pictures, and the columns that they have.

    Attributes:
        raw: the data root; rows of one case or of one file share their line.
        columns: the mapping of the columns, with those that opening added.
    """

    raw: ImageFolder
    columns: Any


def open_rows(
    raw: ImageFolder,
    columns: Any,
    folders: Any,
    volume: VolumeParams | None,
    *,
    may_be_empty: Collection[str],
    section: str,
) -> Opened:
    """Turn folders of cases and files with frames into a row per picture; other data sets stay unchanged.

    Args:
        raw: the data root.
        columns: attribute -> column of a manifest, or file and field of a folder per case; None if the data set has none.
        folders: attribute -> folder in front of the paths of a manifest.
        volume: the wanted planes of a file with several planes.
        may_be_empty: attributes of masks that a case may lack.
        section: section of the parameters, for messages.
    """
    if raw.cases:
        raw = open_cases(raw, columns, may_be_empty=may_be_empty, section=section)
        if columns.core_id is None:
            columns = columns.model_copy(update={"core_id": CASE})
        if columns.frame is None and "*" in columns.image:
            columns = columns.model_copy(update={"frame": FRAME})
    if volume is not None and volume.take == "frames":
        raw = expand_frames(raw, columns, folders, volume)
        columns = columns.model_copy(update={"frame": FRAME})
    return Opened(raw, columns)
