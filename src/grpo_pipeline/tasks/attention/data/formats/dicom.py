"""Read DICOM files as slices, in their stored orientation.

Source: DICOM PS3.3, C.7.6.3 (image pixel), C.11.1 (modality LUT), C.8.5.5 (ultrasound regions).
"""

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from grpo_pipeline.tasks.attention.data.formats.dicom_decoders import check_decoder
from grpo_pipeline.tasks.attention.data.formats.volume_checks import (
    DAMAGE,
    check_shape,
    damaged,
    is_narrow,
    library,
    millimetres,
)
from grpo_pipeline.tasks.attention.data.places import (
    Place,
    nearest_letters,
)
from grpo_pipeline.tasks.attention.data.planes import Stack
from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError

LUMINANCE = (0.299, 0.587, 0.114)
"""ITU-R BT.601, as for coloured PNG files."""

CM_PER_PIXEL = 3
"""DICOM PS3.3, C.8.5.5.1.15: code of an ultrasound region whose pixels are measured in centimetres."""


def read_dicom(path: Path, relpath: str, *, as_mask: bool) -> Stack:
    """Read the frames of a DICOM file: stored value times slope plus intercept, colours as luminance.

    An image in MONOCHROME1 is turned round within its stored bits, so that more is brighter; a mask never is.
    """
    pydicom = library("pydicom", relpath)
    try:
        dataset = pydicom.dcmread(path)
        rows, columns = int(dataset.Rows), int(dataset.Columns)
        check_shape((int(dataset.get("NumberOfFrames") or 1), rows, columns), relpath)
        check_decoder(pydicom, dataset, relpath)
        values = dicom_values(dataset, relpath, as_mask=as_mask).reshape(-1, rows, columns)
        frames = int(dataset.get("NumberOfFrames") or 1)
        if len(values) != frames:
            raise UnreadableFileError(
                f"{relpath!r} must hold the {frames} frames that its header says, got {len(values)}; export it again"
            )
        spacing = dicom_spacing(dataset)
        place = dicom_place(dataset, values.shape, spacing)
        return Stack(values, spacing, place, dicom_statements(dataset, values))
    except UnreadableFileError:
        raise
    except (
        *DAMAGE,
        pydicom.errors.InvalidDicomError,
        pydicom.errors.BytesLengthException,
    ) as error:
        raise damaged(relpath, "DICOM", error) from error


def dicom_values(dataset: Any, relpath: str, *, as_mask: bool) -> np.ndarray:
    """Read the grey levels of all frames, [F, H, W], or [H, W] of a single frame."""
    values, kind = dataset.pixel_array, str(dataset.PhotometricInterpretation)
    padding = None if as_mask else dicom_padding(dataset, values)
    if kind.startswith(("RGB", "YBR")):
        grey = np.round(values.astype(np.float64) @ np.array(LUMINANCE))  # [..., 3] -> [...]
        values = grey.astype(values.dtype)
    elif kind not in ("MONOCHROME1", "MONOCHROME2"):
        raise UnreadableFileError(
            f"{relpath!r} must hold grey levels, RGB or YBR, got {kind}; convert it"
        )
    if kind == "MONOCHROME1" and not as_mask:
        # low + high - value, with the ends of the range of the stored bits: low + high = 2^bits - 1, or -1 if signed.
        ends = -1 if values.dtype.kind == "i" else 2 ** int(dataset.BitsStored) - 1
        values = (ends - values.astype(np.int64)).astype(values.dtype)
    values = rescaled(dataset, values)
    if padding is not None and not padding.all():
        values = np.where(padding, values[~padding].min(), values)
    return np.asarray(values)


def rescaled(dataset: Any, values: np.ndarray) -> np.ndarray:
    """Compute slope * value + intercept as float64, of the file or of each frame; values without rescaling keep their type."""
    if dataset.get("ModalityLUTSequence"):
        return np.asarray(
            importlib.import_module("pydicom.pixels").apply_modality_lut(values, dataset)
        )
    frames = int(dataset.get("NumberOfFrames") or 1)
    groups = frame_groups(dataset, frames)
    lines = [
        (float(one.get("RescaleSlope") or 1), float(one.get("RescaleIntercept") or 0))
        for one in (
            in_group(group, "PixelValueTransformationSequence") or dataset for group in groups
        )
    ]
    if set(lines) == {(1.0, 0.0)}:
        return values
    of_frames = values.reshape(frames, *values.shape[values.ndim - 2 :]).astype(np.float64)
    scaled = [frame * slope + add for frame, (slope, add) in zip(of_frames, lines, strict=True)]
    return np.stack(scaled).reshape(values.shape)


def frame_groups(dataset: Any, frames: int) -> list[tuple[Any, ...]]:
    """List, for each frame, the groups that apply to it, its own before that of all frames."""
    shared = tuple(dataset.get("SharedFunctionalGroupsSequence") or ())[:1]
    own = list(dataset.get("PerFrameFunctionalGroupsSequence") or ())[:frames]
    return [(*((own[i],) if i < len(own) else ()), *shared) for i in range(frames)]


def in_group(groups: tuple[Any, ...], name: str) -> Any:
    """Find the first item of this name in the groups; None without."""
    return next((group[name][0] for group in groups if group.get(name)), None)


def dicom_padding(dataset: Any, values: np.ndarray) -> np.ndarray | None:
    """Mark stored values that are padding, bool; None if the file names no such value."""
    ends = [dataset.get("PixelPaddingValue"), dataset.get("PixelPaddingRangeLimit")]
    if ends[0] is None or values.dtype.kind not in "iu":
        return None
    # A writer may have read the two bytes of a negative value as a positive one.
    top, bits = np.iinfo(values.dtype).max, 8 * values.itemsize
    named = [int(end) - 2**bits * (int(end) > top) for end in ends if end is not None]
    return np.asarray((values >= min(named)) & (values <= max(named)))


def dicom_statements(dataset: Any, values: np.ndarray) -> tuple[str, ...]:
    """List two statements of the file: a narrow window, or a contradiction of its photometric interpretation."""
    found, inverse = [], {"MONOCHROME1": "IDENTITY", "MONOCHROME2": "INVERSE"}
    item = in_group(frame_groups(dataset, 1)[0], "FrameVOILUTSequence") or dataset
    centre, width = (item.get(name) for name in ("WindowCenter", "WindowWidth"))
    if centre is not None and width is not None:
        # Several windows are alternatives: the first one is shown.
        middle, wide = (
            float(one[0] if isinstance(one, list | tuple) or hasattr(one, "append") else one)
            for one in (centre, width)
        )
        if is_narrow(middle - wide / 2, middle + wide / 2, values):
            found.append("window")
    if dataset.get("PresentationLUTShape") == inverse.get(str(dataset.PhotometricInterpretation)):
        found.append("presentation")
    return tuple(found)


def dicom_place(
    dataset: Any, shape: tuple[int, ...], spacing: tuple[float | None, ...]
) -> Place | None:
    """Read the place of the frames; None if the file has no orientation."""
    groups = frame_groups(dataset, 1)[0]
    turned = (in_group(groups, "PlaneOrientationSequence") or dataset).get(
        "ImageOrientationPatient"
    )
    origin = (in_group(groups, "PlanePositionSequence") or dataset).get("ImagePositionPatient")
    lengths = np.array([np.nan if one is None else one for one in spacing], float)
    if not turned:
        known = np.isfinite(lengths[1:]).all()
        return Place(None, None, lengths, ("", "", ""), shape) if known else None  # type: ignore[arg-type]
    along_row, along_column = np.array(turned, float).reshape(2, 3)
    axes = np.stack([np.cross(along_row, along_column), along_column, along_row])
    stored = nearest_letters(axes)
    return Place(
        np.array(origin, float) if origin else None,
        axes,
        lengths,
        (stored[0], stored[1], stored[2]),
        (shape[0], shape[1], shape[2]),
    )


def dicom_spacing(dataset: Any) -> tuple[float | None, float | None, float | None]:
    """Read frame, row and column spacing: the file's own, that shared by its frames, or that of its ultrasound regions."""
    shared: Any = dataset.get("SharedFunctionalGroupsSequence")
    measures = shared[0].get("PixelMeasuresSequence") if shared else None
    source = measures[0] if measures else dataset
    between = source.get("SpacingBetweenSlices")
    if source.get("PixelSpacing"):
        row, column = map(millimetres, source.PixelSpacing)
    else:
        row, column = region_spacing(dataset.get("SequenceOfUltrasoundRegions") or [])
    return None if between is None else millimetres(between), row, column


def region_spacing(regions: Any) -> tuple[float | None, float | None]:
    """Read row and column spacing of ultrasound regions; unknown if they differ or are not lengths (a Doppler trace)."""
    found = {
        (float(region.PhysicalDeltaY), float(region.PhysicalDeltaX))
        for region in regions
        if region.get("PhysicalUnitsXDirection")
        == region.get("PhysicalUnitsYDirection")
        == CM_PER_PIXEL
    }
    if len(found) != 1:
        return None, None
    row_cm, column_cm = found.pop()
    return millimetres(row_cm * 10), millimetres(column_cm * 10)
