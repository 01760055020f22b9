"""Compare the place of an image's slices with the place that the file of its outline states.

Millimetres run to the patient's left, to the back and to the head (LPS), as in DICOM. A file that was turned to these axes is
compared after turning: files that were stored in different directions but show the same place agree.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

LPS_LETTERS = (("R", "L"), ("A", "P"), ("I", "S"))
"""Letters of the two directions of each axis of the patient, against it and along it."""
FROM_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
SPACING_TOLERANCE = 0.01
"""Two spacings are one within this share: exports round."""
ORIGIN_TOLERANCE = 0.5
"""Two first pixels are one within this share of a pixel."""
ANGLE_TOLERANCE = math.cos(math.radians(1))
SAME_AXIS = math.cos(math.radians(45))


@dataclass(frozen=True)
class Place:
    """The place of a file's slices, in the order in which they are read.

    Attributes:
        origin: centre of the first voxel in millimetres, [3]; None where the file does not say.
        axes: unit vectors of slices, rows and columns, [3, 3]; None of a file that knows two axes alone.
        spacing: distance between neighbours along each of them, NaN where the file does not say, [3].
        stored: direction in which the file stores the voxels of each of them, a letter of ``LPS_LETTERS`` each.
        counts: voxels along each of them.
    """

    origin: np.ndarray | None
    axes: np.ndarray | None
    spacing: np.ndarray
    stored: tuple[str, str, str]
    counts: tuple[int, int, int]

    def ordered(self, axis: int) -> "Place":
        """Reorder the axes of the place, with this axis as that of the slices."""
        order = [axis, *(other for other in range(3) if other != axis)]
        return Place(
            self.origin,
            None if self.axes is None else self.axes[order],
            self.spacing[order],
            (self.stored[order[0]], self.stored[order[1]], self.stored[order[2]]),
            (self.counts[order[0]], self.counts[order[1]], self.counts[order[2]]),
        )


def place_of(affine: np.ndarray, counts: tuple[int, ...], *, stored: str, is_told: bool) -> Place:
    """Compute the place of voxels that a matrix maps to LPS millimetres.

    Args:
        affine: of the voxels as they are read, [4, 4], columns of the axes (column, row, slice).
        counts: voxels along slices, rows and columns.
        stored: directions of the axes as stored, in any order, "RAS" for instance.
        is_told: whether the file itself says where its first voxel lies.
    """
    vectors = affine[:3, [2, 1, 0]].T  # slice, row, column
    lengths = np.linalg.norm(vectors, axis=1)
    axes = vectors / np.where(lengths > 0, lengths, 1)[:, None]
    letter = {letter: pair for pair, letters in enumerate(LPS_LETTERS) for letter in letters}
    of_pair = {letter[one]: one for one in stored}
    first, second, third = (of_pair[int(np.abs(axis).argmax())] for axis in axes)
    return Place(
        affine[:3, 3] if is_told else None,
        axes,
        lengths,
        (first, second, third),
        (counts[0], counts[1], counts[2]),
    )


def nearest_letters(axes: Any) -> str:
    """Find the letter of the direction nearest to each vector."""
    found = (int(np.abs(axis).argmax()) for axis in axes)
    return "".join(
        LPS_LETTERS[pair][int(axis[pair] > 0)] for pair, axis in zip(found, axes, strict=True)
    )


def contradiction(image: Place, mask: Place) -> str | None:
    """Write the place that a mask claims if it contradicts its image's; None if the places may agree.

    Directions count: a mask that its header mirrors would be read mirrored. A distance between the first voxels of two files that
    are stored alike does not affect the reading (``differences``).
    """
    if image.axes is None or mask.axes is None:
        return None
    for axis in shared_axes(image, mask):
        if image.axes[axis] @ mask.axes[axis] < SAME_AXIS:
            towards = [nearest_letters(place.axes[[1, 2]]) for place in (image, mask)]  # type: ignore[index]
            return f"rows and columns that run to {towards[0]} in the image and to {towards[1]} in the mask"
    if stored_alike(image, mask):
        return None
    if image.origin is None or mask.origin is None or moved_axes(image, mask):
        return f"{describe_stored(image, mask)}, and from other corners"
    return None


def differences(image: Place, mask: Place) -> list[str]:
    """List harmless differences between the two files: ``direction``, ``spacing``, ``origin``."""
    axes = shared_axes(image, mask)
    found = []
    # A file of another direction was turned, and agrees with its image's place (``contradiction``).
    is_turned = not stored_alike(image, mask)
    if image.axes is not None and mask.axes is not None:
        tilted = any(image.axes[i] @ mask.axes[i] < ANGLE_TOLERANCE for i in axes)
        found += ["direction"] * (is_turned or tilted)
    ratios = [mask.spacing[axis] / image.spacing[axis] for axis in axes]
    if any(abs(ratio - 1) > SPACING_TOLERANCE for ratio in ratios if math.isfinite(ratio)):
        found.append("spacing")
    elif moved_axes(image, mask):
        found.append("origin")
    return found


def shared_axes(image: Place, mask: Place) -> list[int]:
    """List the axes along which both files hold several voxels: only these have a direction."""
    return [axis for axis in range(3) if min(image.counts[axis], mask.counts[axis]) > 1]


def stored_alike(image: Place, mask: Place) -> bool:
    """Check whether both files store their voxels in the same directions."""
    if image.axes is None or mask.axes is None:
        return True
    return all(image.stored[axis] == mask.stored[axis] for axis in shared_axes(image, mask))


def moved_axes(image: Place, mask: Place) -> bool:
    """Check whether the first voxels lie apart along a shared axis; False if a file does not state its place."""
    if image.origin is None or mask.origin is None or image.axes is None or mask.axes is None:
        return False
    apart = image.axes @ (mask.origin - image.origin)  # millimetres along slices, rows, columns
    return any(
        abs(apart[axis]) > ORIGIN_TOLERANCE * image.spacing[axis]
        for axis in shared_axes(image, mask)
    )


def describe_stored(image: Place, mask: Place) -> str:
    """Write the directions of rows and columns, and of slices if they differ, of both files."""
    axes = shared_axes(image, mask)
    own, other = ("".join(place.stored[axis] for axis in axes) for place in (image, mask))
    return f"voxels that run to {own} in the image and to {other} in the mask"
