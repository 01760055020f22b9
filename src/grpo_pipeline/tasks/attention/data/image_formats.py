"""Read medical image files: NIfTI, DICOM, MetaImage and HDF5 become slices in one orientation with their spacing.

Canonical orientation of NIfTI and MetaImage volumes is LPS, array axes (slice, row, column): slices run to the head, rows to the
back, columns to the patient's left, so that an axial slice is seen as radiologists see it. An oblique volume is turned to the
nearest axes, never resampled. DICOM frames stay as they are stored.
Sources: NIfTI-1 standard, orientation methods 2 and 3; DICOM PS3.3, C.7.6.3 (image pixel), C.11.1 (modality LUT), C.8.5.5
(ultrasound regions).
"""

import gzip
import importlib
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from grpo_pipeline.tasks.attention.data.places import (
    FROM_RAS,
    SPACING_TOLERANCE,
    Place,
    nearest_letters,
    place_of,
)
from grpo_pipeline.tasks.attention.data.planes import (
    Stack,
    UnreadableFileError,
    check_numbers,
    describe,
    split_key,
)

# Whether compressed DICOM pixels can be decoded: pydicom itself knows run lengths, plug-ins it finds know the rest.

PACKAGES = {
    "1.2.840.10008.1.2.4.201": "pylibjpeg pylibjpeg-openjpeg",
    "1.2.840.10008.1.2.4.202": "pylibjpeg pylibjpeg-openjpeg",
    "1.2.840.10008.1.2.4.203": "pylibjpeg pylibjpeg-openjpeg",
}
"""Transfer syntax (DICOM PS3.6, table A-1) -> packages with a free licence that decode it; ``python-gdcm`` any other."""
EXTENDED_JPEG = "1.2.840.10008.1.2.4.51"


def check_decoder(pydicom: Any, dataset: Any, relpath: str) -> None:
    """Refuse a compression that nothing here decodes.

    Raises:
        ModuleNotFoundError: if a package could be installed for it: the row is not bad because of that.
        UnreadableFileError: if pydicom knows no decoder at all, a film for instance.
    """
    syntax = dataset.file_meta.get("TransferSyntaxUID")
    if syntax is None or not syntax.is_compressed or syntax.is_deflated:
        return
    try:
        decoder = pydicom.pixels.get_decoder(syntax)
    except NotImplementedError as error:
        raise UnreadableFileError(
            f"{relpath!r} must hold still images, got {syntax.name}; export frames"
        ) from error
    # Pillow counts as a decoder of extended JPEG, but knows 8 bits alone.
    pillow_fails = (
        syntax == EXTENDED_JPEG
        and int(dataset.BitsStored) > 8
        and set(decoder.available_plugins) == {"pillow"}
    )
    if not decoder.is_available or pillow_fails:
        raise ModuleNotFoundError(
            f"reading {relpath!r} needs a decoder of {syntax.name} that pydicom finds; install one: "
            f"pip install {PACKAGES.get(str(syntax), 'python-gdcm')}"
        )


# Read one dataset of an HDF5 file, ``data.h5::bmode/0001``, as slices; nothing outside that file is ever opened.

SHOWN = 3
"""Names of a group that a message gives as examples."""


def read_hdf5(h5py: Any, path: Path, key: str, *, relpath: str) -> Stack:
    """Read a dataset of shape [H, W] or [slices, H, W]; the spacing is unknown.

    Args:
        h5py: the library.
        path: the file.
        key: path of the dataset inside the file, "/" between its groups.
        relpath: file and key as messages name them.

    Raises:
        UnreadableFileError: if the file is damaged, or there is no dataset of one of these shapes under the key.
    """
    try:
        with h5py.File(path, "r", locking="best-effort") as file:
            dataset = find_dataset(h5py, file, key, relpath=relpath)
            shape = dataset.shape or ()
            check_shape(shape, relpath)
            values = np.asarray(dataset[()])
    except (OSError, RuntimeError, KeyError) as error:
        raise UnreadableFileError(
            f"{relpath!r} must lie in a complete HDF5 file, got {describe(error)}; copy it again"
        ) from error
    return Stack(values.reshape(-1, *shape[-2:]), (None, None, None))


def find_dataset(h5py: Any, file: Any, key: str, *, relpath: str) -> Any:
    """Return the dataset of a key; links, which may lead to other files, are not followed."""
    found = file
    for name in key.strip("/").split("/"):
        link = found.get(name, getlink=True) if isinstance(found, h5py.Group) and name else None
        if link is None:
            if isinstance(found, h5py.Group):
                there = [other for other, _ in zip(found, range(SHOWN), strict=False)]
                got = (
                    f"no {name!r} in {found.name!r}, which holds {len(found)} names such as {there}"
                )
            else:
                got = f"a dataset {found.name!r} with nothing below it"
            raise UnreadableFileError(
                f"{relpath!r} must be a dataset of the file, got {got}; correct the manifest"
            )
        if not isinstance(link, h5py.HardLink):
            raise UnreadableFileError(
                f"{relpath!r} must be stored in the file itself, got a link; copy the data into the file"
            )
        found = found[name]
    if not isinstance(found, h5py.Dataset):
        raise UnreadableFileError(
            f"{relpath!r} must be a dataset of the file, got a group; add the name of a dataset in it"
        )
    if found.is_virtual or found.external:
        raise UnreadableFileError(
            f"{relpath!r} must be stored in the file itself, got a reference to others; copy the data into it"
        )
    return found


MAX_VOXELS = 1_000_000_000
LUMINANCE = (0.299, 0.587, 0.114)
"""ITU-R BT.601, as for coloured PNG files."""
MM_PER_UNIT = {"mm": 1.0, "meter": 1000.0, "micron": 0.001, "unknown": 1.0}
DAMAGE = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    OSError,
    EOFError,
    zlib.error,
)
"""What the libraries raise for damaged files beside their own errors."""
CM_PER_PIXEL = 3
"""DICOM PS3.3, C.8.5.5.1.15: code of an ultrasound region whose pixels are measured in centimetres."""


def read_stack(path: Path, relpath: str, *, as_mask: bool) -> Stack:
    """Read the slices of a file of one of ``VOLUME_SUFFIXES``, of a key of an HDF5 file, or of an NPY file.

    Raises:
        UnreadableFileError: if the file is damaged, no image of that format, has another number of axes or too many voxels.
        ModuleNotFoundError: if the library of that format is not installed.
    """
    if path.suffix.lower() == ".npy":
        stack = read_npy_stack(path, relpath)
    elif key := split_key(relpath)[1]:
        stack = read_hdf5(library("h5py", relpath), path, key, relpath=relpath)
    elif path.name.lower().endswith((".nii", ".nii.gz")):
        stack = read_nifti(path, relpath)
    elif path.suffix.lower() == ".dcm":
        stack = read_dicom(path, relpath, as_mask=as_mask)
    else:
        stack = read_metaimage(path, relpath)
    check_numbers(stack.values, relpath)
    return stack


def read_npy_stack(path: Path, relpath: str) -> Stack:
    """Map the slices of an NPY file, [H, W] or [slices, H, W]: of a large file only what is taken is read."""
    array = read_npy(path, relpath)
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise UnreadableFileError(
            f"{relpath!r} must be one plane or one volume, got shape {array.shape}; save one per file"
        )
    return Stack(array.reshape(-1, *array.shape[-2:]), (None, None, None))


def read_npy(path: Path, relpath: str) -> np.ndarray:
    """Map an NPY file that holds no Python objects; nothing of it is read yet."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError) as error:
        raise UnreadableFileError(
            f"{relpath!r} must be a complete NPY file of numbers, got {describe(error)}; save it again"
        ) from error
    if not isinstance(array, np.ndarray):
        raise UnreadableFileError(
            f"{relpath!r} must be an NPY file, got an NPZ archive; save the array with numpy.save"
        )
    return array


def library(name: str, relpath: str) -> Any:
    """Import the library of a format.

    Raises:
        ModuleNotFoundError: if it is not installed: a row is not bad because of that, so it is no ``UnreadableFileError``.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"reading {relpath!r} needs {name}; install the extra: pip install '.[formats]'"
        ) from error


def damaged(relpath: str, kind: str, error: BaseException | str) -> UnreadableFileError:
    """Return the error of a file that its library does not read."""
    got = error if isinstance(error, str) else describe(error)
    return UnreadableFileError(
        f"{relpath!r} must be a complete {kind} file, got {got}; copy it again"
    )


def check_shape(shape: tuple[int, ...], relpath: str) -> None:
    """Refuse what is not a plane or a stack of planes, and more voxels than memory is likely to hold."""
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise UnreadableFileError(
            f"{relpath!r} must be one plane or one volume, got shape {shape}; save one volume per file"
        )
    if math.prod(shape) > MAX_VOXELS:
        raise UnreadableFileError(
            f"{relpath!r} must have at most {MAX_VOXELS} voxels, got shape {shape}; crop it"
        )


def millimetres(value: Any) -> float | None:
    """Return a spacing in millimetres, None for one that cannot be true."""
    spacing = abs(float(value))
    return spacing if math.isfinite(spacing) and spacing > 0 else None


def read_nifti(path: Path, relpath: str) -> Stack:
    """Read a NIfTI-1 or -2 file, scaled by its slope and intercept; a length without unit is taken as millimetres."""
    nibabel = library("nibabel", relpath)
    try:
        # Read a compressed file to its end: only there stands its checksum, and nibabel stops before it.
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
    """Return what a header says twice and differently, and whether it asks for a narrow window."""
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


def is_narrow(low: float, high: float, values: np.ndarray) -> bool:
    """Return whether a window is less than half of the range of the values; one of no width asks for nothing."""
    return 0 < high - low < (float(np.max(values)) - float(np.min(values))) / 2


def nifti_errors(nibabel: Any) -> tuple[type[Exception], ...]:
    """Return what nibabel raises for damaged files; some of its errors derive from ``Exception`` alone."""
    return (
        *DAMAGE,
        nibabel.filebasedimages.ImageFileError,
        nibabel.spatialimages.HeaderDataError,
        nibabel.orientations.OrientationError,
    )


def trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape of three axes where the others have length 1, else the shape as it is."""
    three = (*shape, 1)[:3] if len(shape) < 3 else shape[:3]
    return three if math.prod(three) == math.prod(shape) else shape


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
        # ITK puts its own source file and the folder before what it has to say.
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
    """Return the place of a turned volume, stored in the directions of these letters; "" is a file of two axes."""
    if not stored:
        spacing = np.array([np.nan, *reversed(image.GetSpacing())])
        return Place(None, None, spacing, ("", "", ""), (shape[0], shape[1], shape[2]))
    affine = np.eye(4)
    affine[:3, :3] = np.array(image.GetDirection()).reshape(3, 3) * np.array(image.GetSpacing())
    affine[:3, 3] = image.GetOrigin()
    return place_of(affine, shape, stored=stored, is_told=True)


def metaimage_data(path: Path, relpath: str) -> Path:
    """Return the file that holds the voxels: the file itself, or one that its header names, which must lie beside it."""
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
    """Return the grey levels of all frames, [F, H, W], or [H, W] where there is one."""
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
        # low + high - value, the ends of what the stored bits hold: low + high = 2^bits - 1, signed -1.
        ends = -1 if values.dtype.kind == "i" else 2 ** int(dataset.BitsStored) - 1
        values = (ends - values.astype(np.int64)).astype(values.dtype)
    values = rescaled(dataset, values)
    if padding is not None and not padding.all():
        values = np.where(padding, values[~padding].min(), values)
    return np.asarray(values)


def rescaled(dataset: Any, values: np.ndarray) -> np.ndarray:
    """Return slope * value + intercept as float64, of the file or of each frame; values that are not rescaled keep their type."""
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
    """Return of each frame the groups that speak of it, its own before that of all frames."""
    shared = tuple(dataset.get("SharedFunctionalGroupsSequence") or ())[:1]
    own = list(dataset.get("PerFrameFunctionalGroupsSequence") or ())[:frames]
    return [(*((own[i],) if i < len(own) else ()), *shared) for i in range(frames)]


def in_group(groups: tuple[Any, ...], name: str) -> Any:
    """Return the first item of this name in the groups, None without."""
    return next((group[name][0] for group in groups if group.get(name)), None)


def dicom_padding(dataset: Any, values: np.ndarray) -> np.ndarray | None:
    """Return where the stored values are padding, bool; None where the file names no such value."""
    ends = [dataset.get("PixelPaddingValue"), dataset.get("PixelPaddingRangeLimit")]
    if ends[0] is None or values.dtype.kind not in "iu":
        return None
    # A writer may have taken the two bytes of a negative value for a positive one.
    top, bits = np.iinfo(values.dtype).max, 8 * values.itemsize
    named = [int(end) - 2**bits * (int(end) > top) for end in ends if end is not None]
    return np.asarray((values >= min(named)) & (values <= max(named)))


def dicom_statements(dataset: Any, values: np.ndarray) -> tuple[str, ...]:
    """Return whether the file asks for a narrow window, or contradicts its photometric interpretation."""
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
    """Return where the frames lie, None where the file does not say its orientation."""
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
    """Return frame, row and column spacing: the file's own, that shared by its frames, or that of its ultrasound regions."""
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
    """Return row and column spacing of ultrasound regions; unknown where they differ or are not lengths (a Doppler trace)."""
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
