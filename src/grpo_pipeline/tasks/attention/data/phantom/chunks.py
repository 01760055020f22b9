"""Convert generated cores to chunks of an image folder, so that generated and real data are read alike."""

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import pandas as pd

from grpo_pipeline.tasks.attention.data.image_folder import ImageChunk
from grpo_pipeline.tasks.attention.data.phantom.generate import COLUMNS, PhantomCore

CORES_AT_ONCE = 64


def phantom_chunks(cores: Iterable[PhantomCore]) -> Iterator[ImageChunk]:
    """Yield chunks of at most ``CORES_AT_ONCE`` cores; marking the last chunk takes a chunk of look-ahead."""
    remaining = iter(cores)
    chunk, is_first = list(islice(remaining, CORES_AT_ONCE)), True
    while chunk:
        following = list(islice(remaining, CORES_AT_ONCE))
        rows = pd.DataFrame([core.row for core in chunk], columns=list(COLUMNS))
        files = {path: array for core in chunk for path, array in core_files(core).items()}
        yield ImageChunk(files, rows, is_first=is_first, is_last=not following, source="phantom")
        chunk, is_first = following, False


def core_files(core: PhantomCore) -> dict[str, np.ndarray]:
    """Map path -> array of a core; a benign core has no lesion file."""
    arrays = {
        "image": core.image,
        "region_mask": core.region,
        "bag_mask": core.needle,
        "lesion_mask": core.lesion,
    }
    return {str(core.row[column]): array for column, array in arrays.items() if core.row[column]}


def empty_chunk() -> ImageChunk:
    """Build a chunk that writes nothing, for a user's own data."""
    return ImageChunk(
        {}, pd.DataFrame(columns=list(COLUMNS)), is_first=True, is_last=True, source="manifest"
    )
