"""Read one dataset of an HDF5 file, ``data.h5::bmode/0001``, as slices; nothing outside that file is ever opened."""

from pathlib import Path
from typing import Any

import numpy as np

from grpo_pipeline.tasks.attention.planes import Stack
from grpo_pipeline.tasks.attention.unreadable import UnreadableFileError, describe

SHOWN = 3
"""Names of a group that a message gives as examples."""


def read_hdf5(h5py: Any, path: Path, key: str, *, relpath: str, most_voxels: int) -> Stack:
    """Read a dataset of shape [H, W] or [slices, H, W]; the spacing is unknown.

    Args:
        h5py: the library.
        path: the file.
        key: path of the dataset inside the file, "/" between its groups.
        relpath: file and key as messages name them.
        most_voxels: a larger dataset is not read.

    Raises:
        UnreadableFileError: if the file is damaged, or there is no dataset of numbers of one of these shapes under the key.
    """
    try:
        with h5py.File(path, "r", locking="best-effort") as file:
            dataset = find_dataset(h5py, file, key, relpath=relpath)
            shape = dataset.shape
            if shape is None or len(shape) not in (2, 3) or 0 in shape or dataset.size > most_voxels:
                raise UnreadableFileError(
                    f"{relpath!r} must be one plane or one volume of at most {most_voxels} voxels, got shape {shape}; "
                    "save one array per key"
                )
            if dataset.dtype.kind not in "buif":
                raise UnreadableFileError(
                    f"{relpath!r} must hold real numbers, got type {dataset.dtype}; save it as uint8 or float32"
                )
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
            raise UnreadableFileError(f"{relpath!r} must be a dataset of the file, {nothing_there(h5py, found, name)}")
        if not isinstance(link, h5py.HardLink):
            raise UnreadableFileError(f"{relpath!r} must be stored in the file itself, got a link; copy the data into the file")
        found = found[name]
    if not isinstance(found, h5py.Dataset):
        raise UnreadableFileError(f"{relpath!r} must be a dataset of the file, got a group; add the name of a dataset in it")
    if found.is_virtual or found.external:
        raise UnreadableFileError(
            f"{relpath!r} must be stored in the file itself, got a reference to others; copy the data into it"
        )
    return found


def nothing_there(h5py: Any, group: Any, name: str) -> str:
    """Return which name is missing where, and a few of those that are there."""
    if not isinstance(group, h5py.Group):
        return f"got a dataset {group.name!r} with nothing below it; correct the manifest"
    there = [other for other, _ in zip(group, range(SHOWN), strict=False)]
    return f"got no {name!r} in {group.name!r}, which holds {len(group)} names such as {there}; correct the manifest"
