"""Convert stored pixel values to 8-bit grey levels, and images of any shape to the square model image.

Coordinates in pixels are continuous, x to the right and y downwards. The pixel in row r and column c covers c <= x < c + 1 and r
<= y < r + 1; its centre is (c + 0.5, r + 0.5).
"""

import numpy as np
from PIL import Image

from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError


def to_grey8(array: np.ndarray, *, name: str, intensity: str) -> np.ndarray:
    """Convert pixel values to grey levels 0 to 255, uint8 [H, W].

    Under ``dtype``, the range is that of the type: 8 bits unchanged, 16 bits / 257, truth values and floats from 0 to 1 times
    255. Other integers must already lie in 0 to 255. Under ``minmax``, the image's smallest value becomes 0 and its largest 255.

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
    """Compute height and width of an image whose longer side becomes ``size``, aspect kept, at least one pixel each."""
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
