"""Read medical image files (NIfTI, DICOM, MetaImage, HDF5) as slices in a canonical orientation, with their spacing.

The canonical orientation of NIfTI and MetaImage volumes is LPS, array axes (slice, row, column). Slices run to the head, rows to
the back, columns to the patient's left, so that an axial slice looks as radiologists see it. An oblique volume is turned to the
nearest axes, never resampled. DICOM frames keep their stored orientation.
"""

from pathlib import Path
from threading import Lock

import numpy as np

from grpo_pipeline.tasks.attention.data.formats.dicom import read_dicom
from grpo_pipeline.tasks.attention.data.formats.hdf5 import read_hdf5
from grpo_pipeline.tasks.attention.data.formats.metaimage import read_metaimage
from grpo_pipeline.tasks.attention.data.formats.nifti import read_nifti
from grpo_pipeline.tasks.attention.data.formats.volume_checks import library
from grpo_pipeline.tasks.attention.data.planes import Stack, check_numbers, split_key
from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError, describe

# NumPy parses the header of an NPY file with ast, whose depth counter all threads of Python 3.11 share: two at once may end in
# "SystemError: AST constructor recursion depth mismatch".
_ONE_HEADER_AT_ONCE = Lock()


def read_stack(path: Path, relpath: str, *, as_mask: bool) -> Stack:
    """Read the slices of a file of a suffix in ``VOLUME_SUFFIXES``, of a key of an HDF5 file, or of an NPY file.

    Raises:
        UnreadableFileError: if the file is damaged or no image of that format, or has another number of axes or too many voxels.
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
    """Map the slices of an NPY file, [H, W] or [slices, H, W]: of a large file only the taken slices are read."""
    array = read_npy(path, relpath)
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise UnreadableFileError(
            f"{relpath!r} must be one plane or one volume, got shape {array.shape}; save one per file"
        )
    return Stack(array.reshape(-1, *array.shape[-2:]), (None, None, None))


def read_npy(path: Path, relpath: str) -> np.ndarray:
    """Map an NPY file without Python objects into memory; its values are not read yet."""
    try:
        with _ONE_HEADER_AT_ONCE:
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
