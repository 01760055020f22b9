"""Map points and maps between an image and the square model image."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from grpo_pipeline.tasks.attention.data.grey import fitted_size


@dataclass(frozen=True)
class Frame:
    """The position of an image in the square: resized with its aspect kept, then centred (``grey.py``).

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
        """Map (x, y) in [0, 1] of the square to pixels of the image, [..., 2]; points in the padding lie outside the image."""
        left, top, right, bottom = self.box
        corner, extent = np.array([left, top]), np.array([right - left, bottom - top])
        return np.asarray(
            (np.asarray(points, np.float64) * self.size - corner)
            * (np.array([self.width, self.height]) / extent)
        )

    def to_square(self, points: np.ndarray) -> np.ndarray:
        """Map pixels of the image to (x, y) in [0, 1] of the square, [..., 2]."""
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

        The padding is cut off at its exact, fractional edge, so that its values do not leak in. Resizing is bilinear, with
        antialiasing if the map is finer than the image.
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
