"""Put a map of a plane of a NIfTI file back into the file's own voxels."""

from typing import Any

import numpy as np

from grpo_pipeline.tasks.attention.data.formats.nifti import trimmed
from grpo_pipeline.tasks.attention.data.formats.volume_checks import library
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, resolve_below
from grpo_pipeline.tasks.attention.data.planes import chosen_slices, slice_axis, split_address

LPS = ("L", "P", "S")


def is_nifti(relpath: str) -> bool:
    """Check whether a path, with or without a plane, names a NIfTI file."""
    return split_address(relpath)[0].lower().endswith((".nii", ".nii.gz"))


def heatmap_volume(raw: ImageFolder, relpath: str, heatmap: np.ndarray) -> Any:
    """Build a nibabel image of the input's shape and affine that holds the map in its plane, and 0 elsewhere.

    A plane that was projected from all slices fills all slices.

    Args:
        raw: the data root.
        relpath: path of the NIfTI file, with the plane that is meant.
        heatmap: float [H, W], in the pixels of that plane as it was read.
    """
    nibabel = library("nibabel", relpath)
    name, volume = split_address(relpath)
    image = nibabel.load(resolve_below(raw.root, name))
    own = nibabel.io_orientation(image.affine)
    lps = nibabel.orientations.axcodes2ornt(LPS)
    shape = trimmed(image.shape)
    turned = nibabel.orientations.ornt_transform(own, lps)[:, 0].astype(int)
    canonical = np.zeros([shape[axis] for axis in np.argsort(turned)], np.float32).transpose(
        2, 1, 0
    )
    axis = slice_axis(canonical, name, volume)
    np.moveaxis(canonical, axis, 0)[chosen_slices(canonical.shape[axis], name, volume)] = heatmap
    back = nibabel.orientations.apply_orientation(
        canonical.transpose(2, 1, 0), nibabel.orientations.ornt_transform(lps, own)
    )
    # An image of these values with the geometry and the units of the input, without its scaling and notes.
    header = image.header.copy()
    header.set_data_dtype(np.float32)
    header["cal_min"], header["cal_max"], header["descrip"] = 0.0, 1.0, b"P(cancer)"
    return type(image)(np.ascontiguousarray(back).reshape(image.shape), image.affine, header)
