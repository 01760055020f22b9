"""Read NIfTI volumes as slices in LPS orientation.

Source: NIfTI-1 standard, orientation methods 2 and 3.
"""

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np

from grpo_pipeline.tasks.attention.data.formats.volume_checks import (
    DAMAGE,
    check_shape,
    damaged,
    is_narrow,
    library,
    millimetres,
)
from grpo_pipeline.tasks.attention.data.places import (
    FROM_RAS,
    SPACING_TOLERANCE,
    place_of,
)
from grpo_pipeline.tasks.attention.data.planes import Stack
from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError

MM_PER_UNIT = {"mm": 1.0, "meter": 1000.0, "micron": 0.001, "unknown": 1.0}


def read_nifti(path: Path, relpath: str) -> Stack:
    """Read a NIfTI-1 or -2 file, scaled by its slope and intercept; a length without unit is taken as millimetres."""
    nibabel = library("nibabel", relpath)
    try:
        # Read a compressed file to its end: its checksum stands there, and nibabel stops before it.
        if path.suffix.lower() == ".gz":
            with gzip.open(path) as file:
                while file.read(1_048_576):
                    pass
        image = nibabel.load(path)
        shape = trimmed(image.shape)
        check_shape(shape, relpath)
        values = np.asanyarray(image.dataobj).reshape(shape)
        to_lps = nibabel.orientations.ornt_transform(
            nibabel.io_orientation(image.affine), nibabel.orientations.axcodes2ornt(("L", "P", "S"))
        )
        turned = nibabel.orientations.apply_orientation(values, to_lps)
        place = place_of(
            FROM_RAS @ image.affine @ nibabel.orientations.inv_ornt_aff(to_lps, shape),
            turned.shape[::-1],
            stored="".join(nibabel.aff2axcodes(image.affine)),
            is_told=bool(image.header["qform_code"] or image.header["sform_code"]),
        )
        statements = nifti_statements(image, values)
        scale = MM_PER_UNIT[image.header.get_xyzt_units()[0]]
        zooms = [*image.header.get_zooms()[:3], 1.0][:3]
    except UnreadableFileError:
        raise
    except nifti_errors(nibabel) as error:
        raise damaged(relpath, "NIfTI", error) from error
    spacing = dict(
        zip(to_lps[:, 0].astype(int), (millimetres(zoom * scale) for zoom in zooms), strict=True)
    )
    return Stack(turned.transpose(2, 1, 0), (spacing[2], spacing[1], spacing[0]), place, statements)


def nifti_statements(image: Any, values: np.ndarray) -> tuple[str, ...]:
    """List statements of a header: contradictions in it, and a narrow window."""
    header, found = image.header, []
    sizes = np.linalg.norm(image.affine[:3, :3], axis=0)
    zooms = np.array([*header.get_zooms()[:3], *sizes][: min(len(image.shape), 3)], float)
    is_apart = not np.allclose(zooms, sizes[: len(zooms)], rtol=SPACING_TOLERANCE)
    if header["qform_code"] and header["sform_code"]:
        # The corners of the volume, half a voxel apart at most.
        corner = np.array([*(count - 1 for count in (*image.shape, 1, 1)[:3]), 1])
        apart = (header.get_qform() - header.get_sform()) @ np.stack([[0, 0, 0, 1], corner], axis=1)
        is_apart = is_apart or bool(np.abs(apart).max() > sizes.max() / 2)
    if is_apart:
        found.append("two_affines")
    if is_narrow(float(header["cal_min"]), float(header["cal_max"]), values):
        found.append("window")
    return tuple(found)


def nifti_errors(nibabel: Any) -> tuple[type[Exception], ...]:
    """List the errors that nibabel raises for damaged files; some derive from ``Exception`` alone."""
    return (
        *DAMAGE,
        nibabel.filebasedimages.ImageFileError,
        nibabel.spatialimages.HeaderDataError,
        nibabel.orientations.OrientationError,
    )


def trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Trim a shape to three axes if the others have length 1; else it stays unchanged."""
    three = (*shape, 1)[:3] if len(shape) < 3 else shape[:3]
    return three if math.prod(three) == math.prod(shape) else shape
