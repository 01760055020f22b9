"""Read a 2-D plane of a volume or a multi-frame file, named by a suffix of its path.

A path in the checked table names the plane of the row: ``scan.nii.gz#axis=0,take=middle``. So later reads need no parameter, and
a manifest may choose another slice for each row in the same way. An HDF5 file holds many arrays, of which a path names one:
``data.h5::bmode/0001``, or ``data.h5::bmode/0001#axis=0,take=middle``. The path of a mask may name the values that mean inside,
``zones.nii#axis=0,take=middle#values=1,2``, and several files, ``a.png;b.png``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_pipeline.tasks.attention.data.places import Place
from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError
from grpo_pipeline.tasks.attention.data.volume_params import VolumeParams

VOLUME_SUFFIXES = (".nii", ".nii.gz", ".dcm", ".mha", ".mhd")

IMAGE_SUFFIXES = (
    ".png",
    ".jpg",
    ".jpeg",
    ".bmp",
    ".tif",
    ".tiff",
    ".gif",
    ".npy",
    *VOLUME_SUFFIXES,
)

HDF5_SUFFIXES = (".h5", ".hdf5")

KEYED = re.compile(r"(.+\.(?:h5|hdf5))::(.+)", re.IGNORECASE)

ADDRESS = re.compile(
    r"(.+)#axis=([012]),take=(?:(middle|max_projection|mean_projection)|index,index=(\d+))"
)

VALUES = re.compile(r"(.+)#values=([^#;]+)")

SEVERAL_FILES = ";"

FEW_VALUES = 16
"""A mask with more values than this beside 0 is a smeared one: compressed with loss, or drawn with soft edges."""

EDGE, PICTURE = 1 / 8, 0.1
"""A picture holds at least this share of grey levels further than ``EDGE`` from 0 and from its highest; soft edges hold fewer."""


@dataclass(frozen=True)
class Stack:
    """The slices of a file in canonical orientation.

    Attributes:
        values: [slices, rows, columns], the file's own type.
        spacing_mm: distance between neighbours along each axis of ``values``; None if the file does not state it.
        place: place of the slices; None if the file does not state it.
        statements: names of the file's other statements about itself (``statements.py``).
    """

    values: np.ndarray
    spacing_mm: tuple[float | None, float | None, float | None]
    place: Place | None = None
    statements: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plane:
    """An image or a mask.

    Attributes:
        values: [H, W].
        spacing_mm: row and column spacing; None where the file does not say.
        n_slices: slices of the file along the axis that was taken, 1 for a picture.
        is_smeared: whether a mask held so many values that half of the highest was taken for its edge.
        is_missed: whether a mask held none of the values that are named, but others above 0.
        place: where its slices lie, slices first; None where the file says nothing of it.
        statements: what else the file says of itself, by its name (``statements.py``).
    """

    values: np.ndarray
    spacing_mm: tuple[float, float] | None
    n_slices: int
    is_smeared: bool = False
    is_missed: bool = False
    place: Place | None = None
    statements: tuple[str, ...] = ()


def is_volume_format(path: str) -> bool:
    """Check whether a path without an address has a format that is read as slices."""
    return KEYED.fullmatch(path) is not None or path.lower().endswith(VOLUME_SUFFIXES)


def may_hold_slices(path: str) -> bool:
    """Check whether a path without an address may hold more than one slice, as an NPY file may."""
    return is_volume_format(path) or path.lower().endswith(".npy")


def split_key(path: str) -> tuple[str, str]:
    """Split a path into the file and the key inside it, "" for a file with a single array."""
    found = KEYED.fullmatch(path)
    return (found[1], found[2]) if found else (path, "")


def with_address(path: str, volume: VolumeParams | None) -> str:
    """Add the plane of the parameter to a path; a picture, or a path with a plane of its own, stays unchanged.

    Frames have theirs already, each in a row of its own (``cine_files.expand_frames``).
    """
    if volume is None or volume.take == "frames" or not may_hold_slices(path):
        return path
    index = f",index={volume.index}" if volume.take == "index" else ""
    return f"{path}#axis={volume.axis},take={volume.take}{index}"


def split_address(path: str) -> tuple[str, VolumeParams | None]:
    """Split a path into the file and its plane, None without a plane."""
    found = ADDRESS.fullmatch(path)
    if not found or not may_hold_slices(found[1]):
        return path, None
    index = None if found[4] is None else int(found[4])
    return found[1], VolumeParams.model_validate(
        {"axis": int(found[2]), "take": found[3] or "index", "index": index}
    )


def with_values(path: str, values: Sequence[float] | None) -> str:
    """Add the values that mean inside to the path of a mask, or of several files; None leaves it unchanged."""
    if not values or not path:
        return path
    named = ",".join(f"{value:g}" for value in values)
    return SEVERAL_FILES.join(f"{file}#values={named}" for file in path.split(SEVERAL_FILES))


def split_values(path: str) -> tuple[str, tuple[float, ...] | None]:
    """Split a path into the part before the values that mean inside, and these values, None without any."""
    found = VALUES.fullmatch(path)
    return (found[1], tuple(map(float, found[2].split(",")))) if found else (path, None)


def mask_inside(
    slices: np.ndarray, relpath: str, values: Sequence[float] | None
) -> tuple[np.ndarray, bool, bool]:
    """Compute the inside of a mask over all slices [K, H, W], bool [H, W], and whether it is smeared, and missed.

    Inside are the named ``values``; without any, the only value of the mask above 0. A smeared mask has more than ``FEW_VALUES``
    values; inside is then half of its highest value and above. A missed mask has values above 0, but none of the named ones.

    Raises:
        UnreadableFileError: if the mask has a few values and none is named, or if it is a picture.
    """
    if values is not None:
        inside = np.isin(slices, values)
        return np.asarray(inside.any(axis=0)), False, bool(not inside.any() and (slices > 0).any())
    found = np.unique(slices[slices > 0])
    if len(found) <= 1:
        return np.asarray((slices > 0).any(axis=0)), False, False
    if len(found) > FEW_VALUES:
        grey = (slices > EDGE * found[-1]) & (slices < (1 - EDGE) * found[-1])
        if grey.mean() >= PICTURE and 2 * grey.sum() >= (slices > EDGE * found[-1]).sum():
            raise UnreadableFileError(
                f"{relpath!r} must be a mask, got a picture, {grey.mean():.0%} of it in grey levels; an outline that is drawn "
                "over the image cannot be read: save what lies inside as one value above 0, the rest as 0"
            )
        return np.asarray((slices >= found[-1] / 2).any(axis=0)), True, False
    listed = ", ".join(f"{value:g}" for value in found)
    raise UnreadableFileError(
        f"{relpath!r} must have one value beside 0, got {listed}; say which of them lie inside, in "
        f"attention.data.mask_values, for example lesion_mask: [{found[0]:g}]"
    )


def take_plane(
    stack: Stack,
    relpath: str,
    volume: VolumeParams | None,
    *,
    as_mask: bool,
    values: Sequence[float] | None = None,
) -> Plane:
    """Take the plane that ``volume`` asks for; a file with a single slice gives that slice in any case.

    An image keeps its type; a mean of integers is rounded to the nearest (half to even). A mask is bool (``mask_inside``).

    Raises:
        UnreadableFileError: if there are several slices and no parameter, no slice of that index, or NaN or Inf in the taken
            slices.
    """
    axis = slice_axis(stack.values, relpath, volume)
    n_slices = stack.values.shape[axis]
    slices = np.moveaxis(stack.values, axis, 0)[chosen_slices(n_slices, relpath, volume)]
    check_finite(slices, relpath)
    row, column = (spacing for i, spacing in enumerate(stack.spacing_mm) if i != axis)
    spacing = None if row is None or column is None else (row, column)
    place = None if stack.place is None else stack.place.ordered(axis)
    if as_mask:
        inside, is_smeared, is_missed = mask_inside(slices, relpath, values)
        return Plane(inside, spacing, n_slices, is_smeared, is_missed, place, stack.statements)
    image = project(slices, volume)
    return Plane(image, spacing, n_slices, place=place, statements=stack.statements)


def slice_axis(values: np.ndarray, relpath: str, volume: VolumeParams | None) -> int:
    """Find the axis of the slices: the axis of length 1, else that of the parameter."""
    if 1 in values.shape:
        return values.shape.index(1)
    if volume is None:
        raise UnreadableFileError(
            f"{relpath!r} must hold one slice while attention.data.volume is null, got shape {values.shape}; "
            "say which plane is meant, for example attention.data.volume: {axis: 0, take: middle}, or #axis=0,take=index,index=0 "
            "behind the path"
        )
    return volume.axis


def chosen_slices(n_slices: int, relpath: str, volume: VolumeParams | None) -> slice:
    """Choose the slices along the axis: one, or all for a projection. The middle of an even number is the upper one."""
    if n_slices == 1 or volume is None or volume.take.endswith("projection"):
        return slice(None)
    at = n_slices // 2 if volume.index is None else volume.index
    if at >= n_slices:
        raise UnreadableFileError(
            f"{relpath!r} must have a slice {at} along axis {volume.axis}, got {n_slices} slices counted from 0; "
            "correct attention.data.volume.index"
        )
    return slice(at, at + 1)


def project(slices: np.ndarray, volume: VolumeParams | None) -> np.ndarray:
    """Project slices [K, H, W] to a plane [H, W] in their own type."""
    if len(slices) == 1 or volume is None:
        return np.asarray(slices[0])
    if volume.take == "max_projection":
        return np.asarray(slices.max(axis=0))
    mean = slices.mean(axis=0, dtype=np.float64)
    return np.asarray(mean if slices.dtype.kind == "f" else np.round(mean)).astype(slices.dtype)


def check_numbers(values: np.ndarray, relpath: str) -> None:
    """Refuse values that are not real numbers."""
    if values.dtype.kind not in "buif":
        raise UnreadableFileError(
            f"{relpath!r} must hold real numbers, got type {values.dtype}; save it as uint8 or float32"
        )


def check_finite(values: np.ndarray, relpath: str) -> None:
    """Refuse NaN and Inf."""
    bad = np.size(values) - int(np.count_nonzero(np.isfinite(values)))
    if bad:
        raise UnreadableFileError(
            f"{relpath!r} must hold finite numbers, got {bad} NaN or Inf; replace them before saving"
        )
