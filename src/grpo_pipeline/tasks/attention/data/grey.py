"""Convert stored pixel values to 8-bit grey levels, images of any shape to the square model image, and points and maps back.

Coordinates in pixels are continuous, x to the right and y downwards: the pixel in row r and column c covers c <= x < c + 1 and
r <= y < r + 1, its centre is at (c + 0.5, r + 0.5).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, resolve_below
from grpo_pipeline.tasks.attention.data.image_formats import library, trimmed
from grpo_pipeline.tasks.attention.data.params import (
    MODEL_SPACING_COLUMNS,
    SIZE_COLUMN,
    SPACING_COLUMN,
)
from grpo_pipeline.tasks.attention.data.planes import (
    UnreadableFileError,
    chosen_slices,
    slice_axis,
    split_address,
)


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


@dataclass(frozen=True)
class Frame:
    """How an image lies in the square: resized with its aspect kept, then centred (``grey.py``).

    Attributes:
        height: of the image, in its own pixels.
        width: of the image, in its own pixels.
        size: side of the square model image.
    """

    height: int
    width: int
    size: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom edge of the image in the square, in model pixels."""
        height, width = fitted_size((self.height, self.width), self.size)
        top, left = (self.size - height) // 2, (self.size - width) // 2
        return left, top, left + width, top + height

    def to_image(self, points: np.ndarray) -> np.ndarray:
        """Turn (x, y) in [0, 1] of the square into pixels of the image, [..., 2]; what lies in the padding leaves the image."""
        left, top, right, bottom = self.box
        corner, extent = np.array([left, top]), np.array([right - left, bottom - top])
        return np.asarray(
            (np.asarray(points, np.float64) * self.size - corner)
            * (np.array([self.width, self.height]) / extent)
        )

    def to_square(self, points: np.ndarray) -> np.ndarray:
        """Turn pixels of the image into (x, y) in [0, 1] of the square, [..., 2]."""
        left, top, right, bottom = self.box
        corner, extent = np.array([left, top]), np.array([right - left, bottom - top])
        return np.asarray(
            (
                np.asarray(points, np.float64) * (extent / np.array([self.width, self.height]))
                + corner
            )
            / self.size
        )

    def map_to_image(self, heatmap: np.ndarray) -> np.ndarray:
        """Resize a map over the whole square, [h, w], to the image's own pixels, float32 [height, width].

        The padding is cut off at its exact, fractional edge, and what the map says of it does not come in; bilinear, with
        antialiasing where the map is the finer one.
        """
        scale = np.array([heatmap.shape[1], heatmap.shape[0]] * 2) / self.size
        edges = np.array(self.box) * scale
        left, top, right, bottom = (
            *np.floor(edges[:2]).astype(int),
            *np.ceil(edges[2:]).astype(int),
        )
        box = tuple(edges - np.array([left, top] * 2))
        picture = Image.fromarray(np.ascontiguousarray(heatmap[top:bottom, left:right], np.float32))
        return np.asarray(
            picture.resize((self.width, self.height), Image.Resampling.BILINEAR, box=box)
        )


# A map over one plane of a NIfTI file, put back into the file's own voxels.

LPS = ("L", "P", "S")


def is_nifti(relpath: str) -> bool:
    """Return whether a path, with or without the plane that is meant, names a NIfTI file."""
    return split_address(relpath)[0].lower().endswith((".nii", ".nii.gz"))


def heatmap_volume(raw: ImageFolder, relpath: str, heatmap: np.ndarray) -> Any:
    """Return a nibabel image of the input's shape and affine that holds the map where its plane was taken, and 0 elsewhere.

    A plane that was projected from all slices fills all slices.

    Args:
        raw: the data root.
        relpath: path of the NIfTI file, with the plane that is meant.
        heatmap: float [H, W], in the pixels of that plane as it was read.
    """
    nibabel = library("nibabel", relpath)
    name, volume = split_address(relpath)
    image = nibabel.load(resolve_below(raw.root, name))
    own = nibabel.io_orientation(image.affine)
    lps = nibabel.orientations.axcodes2ornt(LPS)
    shape = trimmed(image.shape)
    turned = nibabel.orientations.ornt_transform(own, lps)[:, 0].astype(int)
    canonical = np.zeros([shape[axis] for axis in np.argsort(turned)], np.float32).transpose(
        2, 1, 0
    )
    axis = slice_axis(canonical, name, volume)
    np.moveaxis(canonical, axis, 0)[chosen_slices(canonical.shape[axis], name, volume)] = heatmap
    back = nibabel.orientations.apply_orientation(
        canonical.transpose(2, 1, 0), nibabel.orientations.ornt_transform(lps, own)
    )
    # An image of these values with the geometry and the units of another, and none of its scaling and notes.
    header = image.header.copy()
    header.set_data_dtype(np.float32)
    header["cal_min"], header["cal_max"], header["descrip"] = 0.0, 1.0, b"P(cancer)"
    return type(image)(np.ascontiguousarray(back).reshape(image.shape), image.affine, header)
