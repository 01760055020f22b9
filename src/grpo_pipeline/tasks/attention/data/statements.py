"""List the statements of image files about themselves beside their pixels, with the reaction to each.

A row of the table is a statement of one or several formats. Readers count the files of each statement by its name. The check of a
manifest warns of them in the row's words, and the table of docs/attention/data.md is made from the same rows.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

logger = logging.getLogger(__name__)

Treatment = Literal["used", "compared", "refused", "not used"]


@dataclass(frozen=True)
class Statement:
    """A statement of files about themselves.

    Attributes:
        name: by which readers count it.
        formats: those that can say it.
        says: the statement, as the format calls it.
        treatment: ``used``: what is read follows it; ``compared``: it is read otherwise, and a warning counts the files;
            ``refused``: the row is bad.
        how: what exactly is done.
        warning: how the files are counted, after their number, "" where nothing is said; the first one follows.
    """

    name: str
    formats: str
    says: str
    treatment: Treatment
    how: str
    warning: str = ""


STATEMENTS = (
    Statement(
        "exif_orientation", "JPEG, PNG, TIFF", "EXIF orientation 2 to 8", "used",
        "images and masks are turned as every viewer turns them, and counted",
        "files have an EXIF orientation other than 1 and are turned as it says: are the outlines drawn on what a viewer shows?",
    ),
    Statement(
        "transparency", "PNG, GIF, TIFF", "transparent pixels", "compared",
        "of an image the grey levels below are read; a mask with a drawing in its transparency, or with transparent pixels "
        "above 0, is refused",
        "images have transparent pixels, whose hidden grey levels are read: is that what a viewer shows?",
    ),
    Statement(
        "white_is_zero", "TIFF", "PhotometricInterpretation WhiteIsZero", "used",
        "turned round, so that more is brighter, masks too",
    ),
    Statement("pages", "TIFF, GIF, PNG", "several pages or frames", "refused", "save the one that is meant"),
    Statement(
        "resolution", "PNG, JPEG, TIFF, BMP", "pixels per inch or metre", "not used",
        "a resolution for screens and printers; `spacing_mm` says that of the tissue",
    ),
    Statement(
        "colour_profile", "PNG, JPEG, TIFF", "gamma and colour profile", "not used", "grey levels are read as stored"
    ),
    Statement("webp", "WebP", "the format", "refused", "convert it to PNG"),
    Statement(
        "direction", "NIfTI, MetaImage, DICOM", "direction of the voxels (mask against image)", "compared",
        "NIfTI and MetaImage are turned to LPS. A mask that then lies elsewhere is refused; one that was stored in another "
        "direction and lies where its image lies is counted",
        "masks are stored in another direction than their image; both are turned as their headers say: look at one of them",
    ),
    Statement(
        "spacing", "NIfTI, MetaImage, DICOM", "size of a voxel (mask against image)", "compared",
        "that of the image counts; more than 1 % apart is counted",
        "masks have another spacing than their image, whose own is used: was their header lost?",
    ),
    Statement(
        "origin", "NIfTI, MetaImage, DICOM", "place of the first voxel (mask against image)", "compared",
        "pixel lies on pixel; more than half a voxel apart is counted",
        "masks claim to lie beside their image, and are read pixel on pixel: do they belong together?",
    ),
    Statement(
        "size", "every format", "rows, columns, slices (mask against image)", "refused", "a mask has the size of its image"
    ),
    Statement(
        "no_place", "PNG, NPY, HDF5, …", "a mask that says no place beside an image that was turned", "compared",
        "the mask is read as stored",
        "masks say no direction while their images were turned to LPS: are they drawn on the image as it is shown?",
    ),
    Statement(
        "two_affines", "NIfTI", "qform and sform, pixdim and affine", "compared", "the sform counts, of the spacing pixdim",
        "NIfTI files say two different places or spacings (qform, sform, pixdim); the sform counts, of the spacing pixdim",
    ),
    Statement(
        "window", "DICOM, NIfTI", "VOI window; cal_min and cal_max", "compared",
        "the whole range of values is read; a window of less than half of it is counted",
        "images ask for a window of less than half of their range of values, which is not applied: are they too flat?",
    ),
    Statement(
        "slope", "DICOM, NIfTI", "rescale slope and intercept, of the file or of a frame; modality table", "used",
        "applied to the stored values",
    ),
    Statement(
        "padding", "DICOM", "PixelPaddingValue, PixelPaddingRangeLimit", "used",
        "padding becomes the lowest value of the rest of the file, and is no part of `minmax`",
    ),
    Statement(
        "monochrome1", "DICOM", "PhotometricInterpretation MONOCHROME1", "used",
        "an image is turned round within its stored bits, a mask is not",
    ),
    Statement(
        "presentation", "DICOM", "PresentationLUTShape against MONOCHROME1 or 2", "compared",
        "the photometric interpretation counts",
        "DICOM files say the opposite of their photometric interpretation in PresentationLUTShape: are they inverted?",
    ),
    Statement(
        "frames", "DICOM", "NumberOfFrames against the length of the pixels", "refused", "export the file again"
    ),
    Statement(
        "bits", "DICOM", "BitsStored", "used", "what lies in higher bits, an overlay, is not read"
    ),
    Statement(
        "patient", "DICOM", "patient, study, overlays, BurnedInAnnotation", "not used", "the manifest says who and what"
    ),
    Statement("checksum", "NIfTI (.gz)", "length and checksum", "refused", "the file is read to its end"),
    Statement(
        "attributes", "HDF5, NPY", "attributes of a dataset; order and byte order of an array", "not used",
        "attributes are not read; the orders are used",
    ),
)  # fmt: skip
"""What is done about every statement."""
WARNINGS: Mapping[str, str] = {one.name: one.warning for one in STATEMENTS if one.warning}


def describe_statements(made: Iterable[tuple[str, str]]) -> dict[str, dict[str, int | str]]:
    """Count the files that make a statement: name -> ``files`` and the first of them, ``example``.

    Args:
        made: name of the statement, and the file or the pair of files.
    """
    found: dict[str, list[str]] = {}
    for name, example in made:
        found.setdefault(name, []).append(example)
    # In the order of the table; a file that several rows name counts once.
    return {
        name: {"files": len(set(found[name])), "example": found[name][0]}
        for name in WARNINGS
        if name in found
    }


def warn_of_statements(found: Mapping[str, Mapping[str, int | str]]) -> None:
    """Log how many files make each statement that deserves a look, with the first file."""
    for name, made in found.items():
        logger.warning("%d %s (the first: %s)", made["files"], WARNINGS[name], made["example"])
