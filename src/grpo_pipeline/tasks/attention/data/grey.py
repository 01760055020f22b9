"""Convert stored pixel values to 8-bit grey levels, and images of any shape to the square model image."""

import numpy as np
import pandas as pd
from PIL import Image

from grpo_pipeline.tasks.attention.data.params import (
    MODEL_SPACING_COLUMNS,
    SIZE_COLUMN,
    SPACING_COLUMN,
)
from grpo_pipeline.tasks.attention.data.planes import UnreadableFileError


def to_grey8(array: np.ndarray, *, name: str, intensity: str) -> np.ndarray:
    """Return grey levels 0 to 255, uint8 [H, W].

    Under ``dtype``, the range is that of the type: 8 bit as is, 16 bit / 257, truth values and floats from 0 to 1 times 255,
    other integers must already lie in 0 to 255. Under ``minmax``, the image's smallest value becomes 0 and its largest 255.

    Raises:
        UnreadableFileError: under ``dtype``, if a value lies outside the range of its type.
    """
    if intensity == "minmax":
        low, high = float(array.min()), float(array.max())
        return np.round(255 * (array.astype(np.float64) - low) / max(high - low, 1e-12)).astype(
            np.uint8
        )
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.uint16:
        return np.round(array / 257).astype(np.uint8)
    top = 1 if array.dtype.kind in "bf" else 255
    if array.min() < 0 or array.max() > top:
        raise UnreadableFileError(
            f"{name!r} must hold grey levels from 0 to {top} for its type {array.dtype}, got {array.min():g} to {array.max():g}; "
            "rescale it or train with attention.data.intensity: minmax"
        )
    return np.round(array.astype(np.float64) * (255 / top)).astype(np.uint8)


def fitted_size(shape: tuple[int, int], size: int) -> tuple[int, int]:
    """Return height and width of an image whose longer side becomes ``size``, its aspect kept, at least one pixel each."""
    height, width = shape
    scale = size / max(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def pad_to_square(array: np.ndarray, size: int) -> np.ndarray:
    """Centre an array in a square of zeros, [size, size]; an odd remainder goes below and to the right."""
    top, left = (size - array.shape[0]) // 2, (size - array.shape[1]) // 2
    square = np.zeros((size, size), array.dtype)
    square[top : top + array.shape[0], left : left + array.shape[1]] = array
    return square


def resize_image(image: np.ndarray, size: int) -> np.ndarray:
    """Resize grey levels to a square, uint8 [size, size]: aspect kept, bilinear with antialiasing, padded with 0."""
    height, width = fitted_size((image.shape[0], image.shape[1]), size)
    return pad_to_square(
        np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)), size
    )


def resize_mask(mask: np.ndarray, size: int) -> np.ndarray:
    """Resize a mask as its image, bool [size, size]: True where at least half of a pixel's area is covered.

    A mask that is too small for that keeps the pixels that it covers most, so it never vanishes. False in the padding.
    """
    height, width = fitted_size((mask.shape[0], mask.shape[1]), size)
    area = np.asarray(
        Image.fromarray(mask.astype(np.float32)).resize((width, height), Image.Resampling.BOX)
    )
    threshold = min(0.5, float(area.max())) if mask.any() else np.inf
    return pad_to_square(area >= threshold, size)


# From the spacing of a stored image to millimetres per pixel of the square model image.


def with_model_spacing(table: pd.DataFrame, image_size: int) -> pd.DataFrame:
    """Add ``row_mm`` and ``column_mm``, NaN where the spacing is unknown; a table without any spacing stays as it is.

    Args:
        table: with the stored size and spacing of each image as text, or without both columns.
        image_size: side S of the model image in pixels.
    """
    if SPACING_COLUMN not in table or SIZE_COLUMN not in table:
        return table
    pairs = [
        model_spacing(*texts, image_size)
        for texts in zip(table[SPACING_COLUMN], table[SIZE_COLUMN], strict=True)
    ]
    return table.assign(
        **dict(zip(MODEL_SPACING_COLUMNS, np.array(pairs, np.float64).T, strict=True))
    )


def model_spacing(spacing_mm: str, stored_size: str, image_size: int) -> tuple[float, float]:
    """Return row and column millimetres per model pixel: spacing * stored pixels / pixels of the resized image, per axis.

    The two differ a little even for square stored pixels, since height and width are rounded to whole pixels separately.

    Args:
        spacing_mm: row and column spacing of the stored image, "0.3 0.2", or "".
        stored_size: its rows and columns, "512 384".
        image_size: side of the model image, to which the longer side is resized.
    """
    if not spacing_mm:
        return np.nan, np.nan
    height, width = (int(text) for text in stored_size.split())
    row, column = (float(text) for text in spacing_mm.split())
    fitted = fitted_size((height, width), image_size)
    return row * height / fitted[0], column * width / fitted[1]
