"""Warn of images of 16 bits that are nearly black."""

import logging
from collections.abc import Sequence

logger = logging.getLogger(__name__)


def warn_of_dark(are_dark: Sequence[bool | None]) -> None:
    """Log that all images of 16 bits use only 12 bits or fewer; None stands for an image of another type."""
    deep = [is_dark for is_dark in are_dark if is_dark is not None]
    if deep and all(deep):
        logger.warning(
            "All %d images of 16 bits use less than a sixteenth of their range, as 10 and 12 bits do, and are nearly black with "
            "intensity: dtype; train with attention.data.intensity: minmax",
            len(deep),
        )
