"""Open the files of a row, and check that they belong together."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from grpo_pipeline.tasks.attention.data.grey import to_grey8
from grpo_pipeline.tasks.attention.data.image_folder import RANGE_16, ImageFolder
from grpo_pipeline.tasks.attention.data.places import Place, contradiction, differences
from grpo_pipeline.tasks.attention.data.planes import Plane, split_address
from grpo_pipeline.tasks.attention.data.preprocessing_params import Preprocessing
from grpo_pipeline.tasks.attention.data.rows import RowError
from grpo_pipeline.tasks.attention.data.table_columns import PATHS
from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError


@dataclass(frozen=True)
class CheckedMasks:
    """Findings about the files of a row.

    ``bag_is_empty``: the bag mask is all zero. ``has_lesion``: the lesion mask holds a lesion. ``bag_is_lesion``: both masks hold
    the same pixels, and some, so that the losses learn from the outline. ``spacing_mm``: the image's row and column spacing as
    text, "" if neither the file nor the parameters state it. ``shares``: share of the image inside each mask. ``smeared``: masks
    whose edge had to be guessed. ``missed``: masks with values above 0, none of them named. ``is_dark``: an image of 16 bits uses
    less than a sixteenth of their range; None with other types and ``minmax``. ``statements``: a name of ``statements.py``, and
    the file or the pair of files.
    """

    bag_is_empty: bool
    has_lesion: bool
    bag_is_lesion: bool
    shape: tuple[int, int]
    spacing_mm: str
    shares: Mapping[str, float]
    smeared: frozenset[str]
    missed: frozenset[str]
    is_dark: bool | None = None
    statements: tuple[tuple[str, str], ...] = ()


def check_files(
    raw: ImageFolder,
    row: Mapping[str, object],
    params: Preprocessing,
    *,
    spacing_mm: tuple[float, float] | None = None,
) -> CheckedMasks:
    """Open the files of a row and check that they belong together; ``spacing_mm`` is the spacing of files without one.

    Raises:
        RowError: if a file cannot be read, sizes differ, or the region is empty. Also if the bag is empty against ``empty_bag``,
            or does not overlap the region.
    """
    image_path = str(row["image"])
    with named_file(image_path):
        plane = raw.read_plane(image_path, as_mask=False)
        image = to_grey8(plane.values, name=image_path, intensity=params.intensity)
    planes = {}
    for name in PATHS[1:]:
        if path := str(row[name]):
            with named_file(path):
                planes[name] = raw.read_mask_plane(path)
    check_contrast(image, plane.values, path=image_path)
    masks = {name: mask.values for name, mask in planes.items()}
    for name, mask in masks.items():
        if planes[name].n_slices not in (1, plane.n_slices):
            raise RowError(
                f"{row[name]!r} must have one slice or those of its image, {plane.n_slices}, got {planes[name].n_slices}; "
                "export it again",
                file=str(row[name]),
            )
        if mask.shape != image.shape:
            size, wanted = (
                f"{mask.shape[1]} x {mask.shape[0]}",
                f"{image.shape[1]} x {image.shape[0]}",
            )
            turned = plane.statements.count("exif_orientation") and mask.shape == image.shape[::-1]
            remedy = (
                "the image was turned by its EXIF orientation: turn the mask, too, or save the image without"
                if turned
                else "export it again"
            )
            raise RowError(
                f"{row[name]!r} must have the size of its image, {wanted}, got {size}; {remedy}",
                file=str(row[name]),
            )
        check_place(plane, planes[name], paths=(image_path, str(row[name])))
    region = masks.get("region_mask", np.ones(image.shape, bool))
    if not region.any():
        raise RowError(
            f"{row['region_mask']!r} must mark where points may fall, got an empty mask; draw it",
            file=str(row["region_mask"]),
        )
    bag_is_empty = check_bag(
        masks.get("bag_mask"), region, path=str(row["bag_mask"]), empty_bag=params.empty_bag
    )
    has_lesion = "lesion_mask" in masks and bool((masks["lesion_mask"] & region).any())
    bag = masks.get("bag_mask")
    bag_is_lesion = has_lesion and bag is not None and np.array_equal(bag, masks["lesion_mask"])
    spacing = plane.spacing_mm or spacing_mm
    text = "" if spacing is None else f"{spacing[0]:.9g} {spacing[1]:.9g}"
    return CheckedMasks(
        bag_is_empty,
        has_lesion,
        bag_is_lesion,
        (image.shape[0], image.shape[1]),
        text,
        shares={name: float(mask.mean()) for name, mask in masks.items()},
        smeared=frozenset(name for name, plane in planes.items() if plane.is_smeared),
        missed=frozenset(name for name, plane in planes.items() if plane.is_missed),
        is_dark=bool(plane.values.max() < RANGE_16 / 16)
        if plane.values.dtype == np.uint16 and params.intensity == "dtype"
        else None,
        statements=tuple(row_statements(plane, planes, row)),
    )


@contextmanager
def named_file(path: str) -> Iterator[None]:
    """Convert the error of an unusable file into the error of its row, which names the file."""
    try:
        yield
    except UnreadableFileError as error:
        raise RowError(str(error), file=path) from error


def check_place(image: Plane, mask: Plane, *, paths: tuple[str, str]) -> None:
    """Refuse a mask whose file claims another place than its image: it would be read mirrored."""
    if image.place is None or mask.place is None:
        return
    if (claim := contradiction(image.place, mask.place)) is not None:
        raise RowError(
            f"{paths[1]!r} must lie where its image {paths[0]!r} lies, got {claim}; save it again with the header of its image",
            file=paths[1],
        )


def row_statements(
    image: Plane, masks: Mapping[str, Plane], row: Mapping[str, object]
) -> Iterator[tuple[str, str]]:
    """Yield statements of a row's files about themselves, and differences between mask and image: a name, and the files."""
    path = str(row["image"])
    yield from ((name, path) for name in image.statements)
    for kind, mask in masks.items():
        yield from ((name, str(row[kind])) for name in mask.statements if name != "window")
        pair = f"{path} with {row[kind]}"
        if image.place is not None and mask.place is not None:
            yield from ((name, pair) for name in differences(image.place, mask.place))
        elif image.place is not None and mask.place is None and is_turned(path, image.place):
            yield "no_place", pair


def is_turned(path: str, place: Place) -> bool:
    """Check whether rows or columns of an image were turned on reading; those of DICOM files never are."""
    shown = [place.stored[axis] for axis in (1, 2) if place.counts[axis] > 1]
    of_dicom = split_address(path)[0].lower().endswith(".dcm")
    return not of_dicom and any(letter in "RAI" for letter in shown)


def check_contrast(image: np.ndarray, values: np.ndarray, *, path: str) -> None:
    """Refuse an image of a single grey level, such as an all-black one: it shows nothing."""
    if image.min() != image.max():
        return
    if values.min() != values.max():
        got = f"values from {values.min():g} to {values.max():g}, which are one of 256 grey levels"
        raise RowError(
            f"{path!r} must show something, got {got}; set attention.data.intensity: minmax",
            file=path,
        )
    raise RowError(
        f"{path!r} must show something, got the value {values.min():g} everywhere; export it again",
        file=path,
    )


def check_bag(bag: np.ndarray | None, region: np.ndarray, *, path: str, empty_bag: str) -> bool:
    """Check whether the bag mask is all zero; refuses that under ``empty_bag: error``, and any bag outside the region."""
    if bag is None or (bag & region).any():
        return False
    if bag.any():
        raise RowError(
            f"{path!r} must overlap the region mask, got two masks that share no pixel; correct one of them",
            file=path,
        )
    if empty_bag == "error":
        remedy = "draw it or set attention.data.empty_bag: region"
        raise RowError(
            f"{path!r} must mark where the label is known, got an empty mask; {remedy}", file=path
        )
    return True
