"""Read a dataset of an HDF5 file, ``data.h5::bmode/0001``, as slices; no other file is ever opened."""

from pathlib import Path
from typing import Any

import numpy as np

from grpo_pipeline.tasks.attention.data.formats.volume_checks import check_shape
from grpo_pipeline.tasks.attention.data.planes import Stack
from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError, describe

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
    """Find the dataset of a key; links, which may lead to other files, are not followed."""
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
