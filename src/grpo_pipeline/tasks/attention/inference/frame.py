"""Map points and heatmaps from the square model image back to the pixels of the image as it was read.

Coordinates in pixels are continuous, x to the right and y downwards: the pixel in row r and column c covers c <= x < c + 1 and
r <= y < r + 1, its centre is at (c + 0.5, r + 0.5).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from grpo_pipeline.tasks.attention.data.grey import fitted_size
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, resolve_below
from grpo_pipeline.tasks.attention.data.image_formats import library, trimmed
from grpo_pipeline.tasks.attention.data.planes import chosen_slices, slice_axis, split_address


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
