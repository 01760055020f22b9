"""Open the files of a row, check that they belong together, and describe the masks of all rows."""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from grpo_pipeline.tasks.attention.data.grey import to_grey8
from grpo_pipeline.tasks.attention.data.image_folder import RANGE_16, ImageFolder
from grpo_pipeline.tasks.attention.data.params import (
    PATHS,
    ColumnParams,
    DataParams,
    FolderParams,
    Preprocessing,
)
from grpo_pipeline.tasks.attention.data.places import Place, contradiction, differences
from grpo_pipeline.tasks.attention.data.planes import (
    FEW_VALUES,
    SEVERAL_FILES,
    Plane,
    split_address,
    split_key,
    with_address,
    with_values,
)
from grpo_pipeline.tasks.attention.data.statements import WARNINGS
from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError
from grpo_pipeline.tasks.text_lines import composed

logger = logging.getLogger(__name__)

Row = dict[str, Any]


class RowError(ValueError):
    """A row that cannot be used; ``file`` is the file at fault, or "" for the row itself."""

    def __init__(self, reason: str, *, file: str = "") -> None:
        super().__init__(reason)
        self.file = file


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


def read_paths(
    cells: Mapping[str, str],
    columns: ColumnParams | Any,
    folders: FolderParams | Any,
    *,
    may_be_empty: Collection[str],
) -> dict[str, str]:
    """Build the paths below the data root, with their folders; "" for a missing file.

    Args:
        cells: the row.
        columns: attribute -> column, None where there is none.
        folders: attribute -> folder that is put before the path.
        may_be_empty: attributes whose cell may be empty.
    """
    paths = {}
    for name in (name for name in PATHS if name in type(folders).model_fields):
        column, folder = getattr(columns, name), getattr(folders, name)
        cell = cells[column] if column else ""
        if column and not cell and name not in may_be_empty:
            raise RowError(
                f"column {column!r} must hold the path of the {name}, got an empty cell; fill it in"
            )
        # A plain join: an absolute path or ".." in the cell must reach the check of the data root unchanged.
        paths[name] = SEVERAL_FILES.join(
            f"{folder.rstrip('/')}/{file}" if file and folder and not file.startswith("/") else file
            for file in files_of(name, cell)
        )
    return paths


def addressed(paths: Mapping[str, str], params: Preprocessing) -> dict[str, str]:
    """Add to the paths the plane from the parameters, and to those of masks the values that count as inside."""
    found = {
        name: SEVERAL_FILES.join(with_address(file, params.volume) for file in files_of(name, path))
        for name, path in paths.items()
    }
    values = params.mask_values
    return {
        name: with_values(path, getattr(values, name)) if name in PATHS[1:] else path
        for name, path in found.items()
    }


def files_of(name: str, cell: str) -> list[str]:
    """List the files of a cell: a mask may be drawn in several, ``a.png;b.png``."""
    if name == "image":
        return [cell]
    return [file.strip() for file in cell.split(SEVERAL_FILES)]


def file_stem(path: str) -> str:
    """Find the file name without its ending (``.nii.gz`` is a single ending), or the last part of a key in a file."""
    name, key = split_key(split_address(path)[0])
    return PurePosixPath(key).name if key else PurePosixPath(name.removesuffix(".gz")).stem


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


def count_shared(name: str, usable: Sequence[tuple[Row, CheckedMasks]]) -> int:
    """Count the files of non-empty masks that several images share: a single outline hardly fits all of them."""
    images: dict[str, set[str]] = {}
    for row, masks in usable:
        if masks.shares.get(name):
            images.setdefault(row[name], set()).add(row["image"])
    return sum(len(of_one) > 1 for of_one in images.values())


def unnamed_masks(raw: ImageFolder, params: DataParams) -> dict[str, list[str]]:
    """List the mask files that no row names, per kind of mask: they may be outlines of other images.

    They are looked for beside those that are named, in folders that hold no image of the data set.
    """
    named: dict[str, set[str]] = {name: set() for name in PATHS}
    for line in raw.manifest.itertuples(index=False, name=None):
        cells = dict(zip(raw.manifest.columns, line, strict=True))
        paths = read_paths(cells, params.columns, params.folders, may_be_empty=PATHS)
        for name, path in paths.items():
            # An HDF5 file holds its masks under keys; unnamed keys are not searched.
            files = (split_address(file)[0] for file in path.split(SEVERAL_FILES))
            named[name] |= {file for file in files if file and not split_key(file)[1]}
    taken = set().union(*named.values())
    folders_of_images = {str(PurePosixPath(file).parent) for file in named["image"]}
    found = {}
    for name in PATHS[1:]:
        folders = {str(PurePosixPath(file).parent) for file in named[name]} - folders_of_images
        endings = {PurePosixPath(file).suffix.lower() for file in named[name]}
        there = {
            composed(f"{folder}/{path.name}".removeprefix("./"))
            for folder in folders
            if (raw.root / folder).is_dir()
            for path in (raw.root / folder).iterdir()
            if path.suffix.lower() in endings and path.is_file()
        }
        found[name] = sorted(there - taken)
    return found


def warn_of_unnamed(unnamed: Mapping[str, Sequence[str]]) -> None:
    """Log the mask files that no row names."""
    for name, files in unnamed.items():
        if files:
            logger.warning(
                "%d files beside those of %s belong to no row of the manifest, such as %r: are they outlines of other images?",
                *(len(files), name, files[0]),
            )


def describe_masks(
    shares: Sequence[float], *, smeared: int, shared: int, missed: int
) -> dict[str, float | int]:
    """Describe masks of a kind: the shares of their images, and how many are empty, mostly inside, smeared or shared.

    The number of masks without any of the named values is added only if there are such masks.
    """
    low, middle, high = np.quantile(shares, (0, 0.5, 1)).round(4).tolist()
    return {
        "files": len(shares),
        "empty": sum(share == 0 for share in shares),
        "lowest_share": low,
        "median_share": middle,
        "highest_share": high,
        "more_than_half": sum(share > 0.5 for share in shares),
        "smeared": smeared,
        "shared": shared,
    } | ({"missed": missed} if missed else {})


def warn_of_dark(are_dark: Sequence[bool | None]) -> None:
    """Log that all images of 16 bits use only 12 bits or fewer; None stands for an image of another type."""
    deep = [is_dark for is_dark in are_dark if is_dark is not None]
    if deep and all(deep):
        logger.warning(
            "All %d images of 16 bits use less than a sixteenth of their range, as 10 and 12 bits do, and are nearly black with "
            "intensity: dtype; train with attention.data.intensity: minmax",
            len(deep),
        )


def warn_of_statements(found: Mapping[str, Mapping[str, int | str]]) -> None:
    """Log how many files make each statement that deserves a look, with the first file."""
    for name, made in found.items():
        logger.warning("%d %s (the first: %s)", made["files"], WARNINGS[name], made["example"])


def warn_of_masks(masks: Mapping[str, Mapping[str, float | int]]) -> None:
    """Log masks that look inverted (lesions and bags that cover most of their image), smeared, misnamed or not drawn."""
    for name, found in masks.items():
        if missed := found.get("missed"):
            logger.warning(
                "%d of %d masks of %s hold none of the values that attention.data.mask_values.%s names, but others above 0, and "
                "nothing lies inside: are these the right values?",
                *(missed, found["files"], name, name),
            )
        elif found["empty"] == found["files"]:
            logger.warning(
                "All %d masks of %s are empty: is the outline drawn where it is read, in pixels above 0?",
                *(found["files"], name),
            )
        if name != "region_mask" and found["more_than_half"]:
            logger.warning(
                "%d of %d masks of %s cover more than half of their image (median %.0f%%): are they inverted? "
                "Name the values that lie inside: attention.data.mask_values.%s",
                *(found["more_than_half"], found["files"], name, 100 * found["median_share"], name),
            )
        if name != "region_mask" and found["shared"]:
            logger.warning(
                "%d files of %s mark something in several images each: does one drawing fit all of them?",
                *(found["shared"], name),
            )
        if found["smeared"]:
            logger.warning(
                "%d of %d masks of %s have more than %d values, as a JPEG file has: inside is what is at least half of the "
                "highest value; save masks without loss, as PNG",
                *(found["smeared"], found["files"], name, FEW_VALUES),
            )
