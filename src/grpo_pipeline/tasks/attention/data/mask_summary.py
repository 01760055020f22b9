"""Describe the masks of all rows, and warn of those that look wrong."""

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from grpo_pipeline.tasks.attention.data.file_checks import CheckedMasks
from grpo_pipeline.tasks.attention.data.planes import FEW_VALUES
from grpo_pipeline.tasks.attention.data.rows import Row

logger = logging.getLogger(__name__)


def count_shared(name: str, usable: Sequence[tuple[Row, CheckedMasks]]) -> int:
    """Count the files of non-empty masks that several images share: a single outline hardly fits all of them."""
    images: dict[str, set[str]] = {}
    for row, masks in usable:
        if masks.shares.get(name):
            images.setdefault(row[name], set()).add(row["image"])
    return sum(len(of_one) > 1 for of_one in images.values())


def describe_masks(
    shares: Sequence[float], *, smeared: int, shared: int, missed: int
) -> dict[str, float | int]:
    """Describe masks of a kind: the shares of their images, and how many are empty, mostly inside, smeared or shared.

    The number of masks without any of the named values is added only if there are such masks.
    """
    low, middle, high = np.quantile(shares, (0, 0.5, 1)).round(4).tolist()
    return {
        "files": len(shares),
        "empty": sum(share == 0 for share in shares),
        "lowest_share": low,
        "median_share": middle,
        "highest_share": high,
        "more_than_half": sum(share > 0.5 for share in shares),
        "smeared": smeared,
        "shared": shared,
    } | ({"missed": missed} if missed else {})


def warn_of_masks(masks: Mapping[str, Mapping[str, float | int]]) -> None:
    """Log masks that look inverted (lesions and bags that cover most of their image), smeared, misnamed or not drawn."""
    for name, found in masks.items():
        if missed := found.get("missed"):
            logger.warning(
                "%d of %d masks of %s hold none of the values that attention.data.mask_values.%s names, but others above 0, and "
                "nothing lies inside: are these the right values?",
                *(missed, found["files"], name, name),
            )
        elif found["empty"] == found["files"]:
            logger.warning(
                "All %d masks of %s are empty: is the outline drawn where it is read, in pixels above 0?",
                *(found["files"], name),
            )
        if name != "region_mask" and found["more_than_half"]:
            logger.warning(
                "%d of %d masks of %s cover more than half of their image (median %.0f%%): are they inverted? "
                "Name the values that lie inside: attention.data.mask_values.%s",
                *(found["more_than_half"], found["files"], name, 100 * found["median_share"], name),
            )
        if name != "region_mask" and found["shared"]:
            logger.warning(
                "%d files of %s mark something in several images each: does one drawing fit all of them?",
                *(found["shared"], name),
            )
        if found["smeared"]:
            logger.warning(
                "%d of %d masks of %s have more than %d values, as a JPEG file has: inside is what is at least half of the "
                "highest value; save masks without loss, as PNG",
                *(found["smeared"], found["files"], name, FEW_VALUES),
            )
