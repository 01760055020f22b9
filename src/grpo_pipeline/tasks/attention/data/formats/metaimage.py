"""Read MetaImage volumes as slices in LPS orientation."""

from pathlib import Path
from typing import Any

import numpy as np

from grpo_pipeline.tasks.attention.data.formats.volume_checks import (
    check_shape,
    damaged,
    library,
    millimetres,
)
from grpo_pipeline.tasks.attention.data.places import (
    Place,
    place_of,
)
from grpo_pipeline.tasks.attention.data.planes import Stack
from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError, describe


def read_metaimage(path: Path, relpath: str) -> Stack:
    """Read an MHA file, or an MHD header with the data file beside it."""
    sitk = library("SimpleITK", relpath)
    metaimage_data(path, relpath)
    try:
        reader = sitk.ImageFileReader()
        reader.SetImageIO("MetaImageIO")
        reader.SetFileName(str(path))
        reader.ReadImageInformation()
        check_shape(reader.GetSize(), relpath)
        image = reader.Execute()
        stored = (
            sitk.DICOMOrientImageFilter.GetOrientationFromDirectionCosines(image.GetDirection())
            if image.GetDimension() == 3
            else ""
        )
        image = sitk.DICOMOrient(image, "LPS") if stored else image
    except RuntimeError as error:
        # ITK puts its own source file and the folder in front of its message.
        raise damaged(
            relpath, "MetaImage", describe(error).rsplit("): ", 1)[-1].rstrip(".")
        ) from error
    values = sitk.GetArrayFromImage(image)
    spacing: list[float | None] = [millimetres(value) for value in reversed(image.GetSpacing())]
    if not stored:
        values, spacing = values[None], [None, *spacing]
    check_shape(values.shape, relpath)  # colours are an axis more
    return Stack(
        values,
        (spacing[0], spacing[1], spacing[2]),
        metaimage_place(image, values.shape, stored),
    )


def metaimage_place(image: Any, shape: tuple[int, ...], stored: str) -> Place:
    """Find the place of a turned volume, stored in the directions of these letters; "" is a file of two axes."""
    if not stored:
        spacing = np.array([np.nan, *reversed(image.GetSpacing())])
        return Place(None, None, spacing, ("", "", ""), (shape[0], shape[1], shape[2]))
    affine = np.eye(4)
    affine[:3, :3] = np.array(image.GetDirection()).reshape(3, 3) * np.array(image.GetSpacing())
    affine[:3, 3] = image.GetOrigin()
    return place_of(affine, shape, stored=stored, is_told=True)


def metaimage_data(path: Path, relpath: str) -> Path:
    """Find the file with the voxels: the file itself, or the one that its header names, which must lie beside it."""
    with path.open("rb") as file:
        header = file.read(65_536)
    _, found, rest = header.partition(b"ElementDataFile")
    name = rest.partition(b"\n")[0].decode("latin-1").strip(" =\t\r")
    if not found or not name:
        raise damaged(relpath, "MetaImage", "no ElementDataFile in its header")
    if name.upper() == "LOCAL":
        return path
    data = path.parent / name
    if (
        Path(name).name != name
        or "%" in name
        or "\0" in name
        or not data.resolve().is_relative_to(path.resolve().parent)
    ):
        raise UnreadableFileError(
            f"{relpath!r} must name one data file beside it, got {name!r}; save it as one MHA file"
        )
    if not data.is_file():
        raise UnreadableFileError(
            f"{relpath!r} must have its data file {name!r} beside it, got nothing there; copy it too"
        )
    return data
