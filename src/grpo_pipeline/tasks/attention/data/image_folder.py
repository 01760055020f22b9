"""Hold a data set on disk: a manifest CSV and its image files, which are read one at a time."""

import csv
import io
import os
import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image, ImageOps, UnidentifiedImageError

from grpo_pipeline.tasks.attention.data.image_formats import read_npy, read_stack
from grpo_pipeline.tasks.attention.data.planes import (
    HDF5_SUFFIXES,
    SEVERAL_FILES,
    Plane,
    check_finite,
    check_numbers,
    is_volume_format,
    mask_inside,
    split_address,
    split_key,
    split_values,
    take_plane,
)
from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError, describe
from grpo_pipeline.tasks.csv_records import broken_record
from grpo_pipeline.tasks.text_lines import HEAD, composed, find_separator

PIXEL_FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF")

OTHER_FORMATS = "NIfTI (.nii, .nii.gz), DICOM (.dcm), MetaImage (.mha, .mhd) or HDF5 (.h5, .hdf5)"

SEVERAL_FRAMES = ("TIFF", "GIF", "PNG")

MAX_PIXELS = 64_000_000

RANGE_16 = 65_535

OPENING = Lock()

ORIENTATION, PHOTOMETRIC, WHITE_IS_ZERO = 0x0112, 262, 0
"""Tags of EXIF and TIFF, and the value of one."""


@dataclass(frozen=True)
class ImageFolder:
    """A data root with its manifest; images are read on request.

    Attributes:
        root: absolute path of the data root.
        manifest: every cell as text, "" where empty; the index is the 1-based line in the file, the header being line 1.
        manifest_path: absolute path of the manifest file; of a data set with a folder per case that of the ``info.json`` files,
            with ``*`` for the folders.
        cases: of such a data set the folders below the root, line n being the n-th of them; none of one with a manifest.
        faults: line -> reason why it cannot be read, known before it is.
    """

    root: Path
    manifest: pd.DataFrame
    manifest_path: Path
    cases: tuple[str, ...] = ()
    faults: Mapping[int, str] = field(default_factory=dict)

    def where(self, line: int) -> str:
        """Name a row in a message: by its line of the manifest, or by its folder."""
        if self.cases:
            return f"{self.root / self.cases[line - 1]}"
        return f"{self.manifest_path} line {line}"

    def read_image(self, relpath: str) -> np.ndarray:
        """Read the grey levels of an image [H, W]: uint8 or uint16 from a picture, the file's own type from any other format.

        Raises:
            UnreadableFileError: if the path leaves the root, or the file is missing, truncated, no image, or holds NaN or Inf.
        """
        return self.read_plane(relpath, as_mask=False).values

    def read_mask(self, relpath: str) -> np.ndarray:
        """Read a mask, bool [H, W], from one or several files (``planes.mask_inside``). Raises as ``read_image``."""
        return self.read_mask_plane(relpath).values

    def read_mask_plane(self, relpath: str) -> Plane:
        """Read a mask with its metadata; of several files, the union of their insides."""
        names = relpath.split(SEVERAL_FILES)
        planes = [self.read_plane(name, as_mask=True) for name in names]
        first = planes[0]
        for name, other in zip(names[1:], planes[1:], strict=True):
            if other.values.shape != first.values.shape:
                raise UnreadableFileError(
                    f"{name!r} must have the size of {names[0]!r}, got {other.values.shape} beside {first.values.shape}; "
                    "export it again"
                )
        together = np.logical_or.reduce([plane.values for plane in planes])
        smeared = any(plane.is_smeared for plane in planes)
        missed = any(plane.is_missed for plane in planes)
        statements = tuple(dict.fromkeys(name for plane in planes for name in plane.statements))
        return replace(
            first,
            values=together,
            is_smeared=smeared,
            is_missed=missed,
            statements=statements,
        )

    def read_plane(self, relpath: str, *, as_mask: bool) -> Plane:
        """Read an image or a mask, bool, with its spacing; the path may name a plane and values (``planes.py``)."""
        address, values = split_values(relpath) if as_mask else (relpath, None)
        name, volume = split_address(address)
        file, key = split_key(name)
        path = resolve_below(self.root, file)
        if not key and file.lower().endswith(HDF5_SUFFIXES):
            raise UnreadableFileError(
                f"{relpath!r} must say which dataset of the HDF5 file is meant, got no key; write {file}::<group>/<name>"
            )
        if is_volume_format(name) or volume is not None:
            stack = read_stack(path, name, as_mask=as_mask)
            return take_plane(stack, name, volume, as_mask=as_mask, values=values)
        pixels, statements = read_pixels(path, name, as_mask=as_mask)
        if not as_mask:
            return Plane(pixels, spacing_mm=None, n_slices=1, statements=statements)
        inside, is_smeared, is_missed = mask_inside(pixels[None], name, values)
        return Plane(inside, None, 1, is_smeared, is_missed, statements=statements)


@dataclass(frozen=True)
class ImageChunk:
    """Files and manifest rows for an image folder that is written chunk by chunk.

    Attributes:
        files: path below the root -> array (uint8 grey levels or bool mask) [H, W].
        rows: the manifest rows that belong to these files.
        is_first: True for the chunk that starts a new folder; what an interrupted run left behind is discarded.
        is_last: True for the chunk that completes the folder; only then does it replace the old one.
        source: ``phantom``, or ``manifest`` for a user's own data: such a chunk writes nothing.
    """

    files: dict[str, np.ndarray]
    rows: pd.DataFrame
    is_first: bool
    is_last: bool
    source: str


def read_manifest(path: Path) -> pd.DataFrame:
    """Read a manifest CSV as text; the index is the line number of each row, blank lines are skipped.

    Raises:
        ValueError: if the file has no header, no rows, a repeated column, a row with too many cells, or is not UTF-8 text.
    """
    lines: list[tuple[int, list[str]]] = []
    begins = 1
    with path.open("rb") as content:
        head = content.read(HEAD)
    separator = find_separator(head, str(path))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True, delimiter=separator)
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    lines.append((reader.line_num, [composed(cell.strip()) for cell in cells]))
                begins = reader.line_num + 1
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be a table in UTF-8, got {error}; export the table again, as CSV in UTF-8"
        ) from error
    except csv.Error as error:
        raise ValueError(broken_record(str(path), begins, error)) from error
    if len(lines) < 2:
        got = "only a header" if lines else "an empty file"
        raise ValueError(
            f"{path} must hold a header and at least one row, got {got}; check that the export is complete"
        )
    header = lines[0][1]
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise ValueError(
            f"{path} must name each column once, got {repeated} more than once; rename one of them"
        )
    rows = [padded(cells, len(header), path=path, line=line) for line, cells in lines[1:]]
    index = pd.Index([line for line, _ in lines[1:]], name="line")
    return pd.DataFrame(rows, columns=header, index=index, dtype=str)


def padded(cells: list[str], width: int, *, path: Path, line: int) -> list[str]:
    """Pad a row to the width of the header; missing cells at its end are empty."""
    if len(cells) > width:
        raise ValueError(
            f"{path} line {line} must have {width} cells as the header has, got {len(cells)}; quote cells with commas"
        )
    return cells + [""] * (width - len(cells))


def resolve_below(root: Path, relpath: str) -> Path:
    """Resolve the absolute path of a file below the root; ``..``, absolute paths and links that lead out are refused."""
    given = Path(relpath)
    if given.is_absolute() and given.resolve().is_relative_to(root.resolve()):
        below = given.resolve().relative_to(root.resolve())
        raise UnreadableFileError(
            f"{relpath!r} must be relative to {root}, got an absolute path; give it as {str(below)!r}"
        )
    if given.is_absolute() or ".." in given.parts or "\0" in relpath:
        raise UnreadableFileError(
            f"{relpath!r} must be a path below the data root, got one that leaves it; move the file below {root}"
        )
    path = root / given
    if not path.resolve().is_relative_to(root.resolve()):
        raise UnreadableFileError(
            f"{relpath!r} must be a path below the data root, got a link that leaves it; copy the file below {root}"
        )
    if path.is_file():
        return path
    found = look_alike(root, given)
    if found is not None and composed(str(found.relative_to(root))) == composed(str(given)):
        return found
    got = (
        "nothing there; add the file or correct the manifest"
        if found is None
        else f"one whose name differs in case, {str(found.relative_to(root))!r}; write it as it is"
    )
    raise UnreadableFileError(f"{relpath!r} must be a file below {root}, got {got}")


def look_alike(root: Path, given: Path) -> Path | None:
    """Find a file below the root whose name differs in Unicode form or case alone; None without or with several.

    An archive of another system may hold decomposed names, such as u and its dots as two signs.
    """
    here = root
    for part in given.parts:
        wanted = composed(part).casefold()
        names = sorted(os.listdir(here)) if here.is_dir() else []
        alike = [name for name in names if composed(name).casefold() == wanted]
        alike = [name for name in alike if composed(name) == composed(part)] or alike
        if len(alike) != 1:
            return None
        here = here / alike[0]
    is_inside = here.resolve().is_relative_to(root.resolve())
    return here if is_inside and here.is_file() else None


def read_pixels(path: Path, relpath: str, *, as_mask: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    """Read the array of a file, [H, W], and its statements about itself (``statements.py``).

    Colours become grey levels; a mask with a palette becomes its indices.
    """
    array, statements = (
        (read_npy(path, relpath), ())
        if path.suffix.lower() == ".npy"
        else read_picture(path, relpath, as_mask=as_mask)
    )
    if array.ndim != 2 or 0 in array.shape:
        raise UnreadableFileError(
            f"{relpath!r} must be one grey-level plane [height, width], got shape {array.shape}; save one plane"
            + ("" if array.ndim != 3 else ", or say which slice is meant: attention.data.volume")
        )
    check_numbers(array, relpath)
    check_finite(array, relpath)
    return array, statements


def read_picture(path: Path, relpath: str, *, as_mask: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    """Read a picture file as grey levels, uint8 or uint16 [H, W], turned by its EXIF orientation.

    Also returns what it says of itself (``statements.py``).
    """
    content, statements = path.read_bytes(), []
    try:
        # Warning filters are global to the process: two threads that change and restore them would conflict.
        with OPENING, warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Only the header is read; pixels are decoded on request.
            opened = Image.open(io.BytesIO(content), formats=PIXEL_FORMATS)
        with opened as picture:
            kind, size, frames = picture.format, picture.size, getattr(picture, "n_frames", 1)
            if frames != 1 and kind in SEVERAL_FRAMES:
                raise UnreadableFileError(
                    f"{relpath!r} must hold one picture, got {frames} pages or frames; save the one that is meant as a file"
                )
            if size[0] * size[1] > MAX_PIXELS:
                raise UnreadableFileError(
                    f"{relpath!r} must have at most {MAX_PIXELS} pixels, got {size[0]} x {size[1]}; shrink it"
                )
            if picture.getexif().get(ORIENTATION, 1) in range(2, 9):
                statements.append("exif_orientation")
            # Pillow turns a TIFF file on decoding, and then drops its orientation.
            picture.load()
            turned = ImageOps.exif_transpose(picture) if statements else picture
            array = grey_levels(turned, as_mask=as_mask)
            if turned.has_transparency_data and not turned.mode.startswith("I"):
                alpha = np.asarray(turned.convert("RGBA").getchannel("A"))
                if as_mask:
                    check_transparency(array, alpha, relpath)
                elif alpha.min() < 255:
                    statements.append("transparency")
            # Pillow inverts pictures in which 0 is white only in 1 and 8 bits.
            tags: Any = getattr(picture, "tag_v2", {})
            if array.dtype == np.uint16 and tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:
                array = RANGE_16 - array
    except UnreadableFileError:
        raise
    except UnidentifiedImageError as error:
        raise UnreadableFileError(
            f"{relpath!r} must be a {', '.join(PIXEL_FORMATS)} or NPY image, or by its ending a {OTHER_FORMATS} file, got "
            f"{other_kind(content)}"
        ) from error
    except (
        OSError,
        SyntaxError,
        struct.error,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        raise UnreadableFileError(
            f"{relpath!r} must be a complete image file, got {describe(error)}; copy it again"
        ) from error
    # Pillow reads a PNG without its last bytes silently.
    if kind == "PNG" and content.rfind(b"IEND") < 0:
        raise UnreadableFileError(
            f"{relpath!r} must be a complete image file, got a PNG without its end; copy it again"
        )
    return array, tuple(statements)


def grey_levels(picture: Image.Image, *, as_mask: bool) -> np.ndarray:
    """Convert a picture to an array: 16 bits and floats keep their depth, a palette becomes its indices in a mask."""
    if picture.mode.startswith("I;16"):
        return np.asarray(picture).astype(np.uint16)
    if picture.mode in ("1", "L", "I", "F") or (as_mask and picture.mode == "P"):
        return np.asarray(picture)
    return np.asarray(picture.convert("L"))


def check_transparency(array: np.ndarray, alpha: np.ndarray, relpath: str) -> None:
    """Refuse a mask of a single colour with a drawing in its transparency, and a mask with drawn transparent pixels."""
    if array.min() == array.max() and alpha.min() != alpha.max():
        colour = "black" if not array.any() else "one colour"
        raise UnreadableFileError(
            f"{relpath!r} must be drawn in grey levels or colours, got {colour} with a drawing in its transparency; "
            "save it without"
        )
    if hidden := int(((array > 0) & (alpha == 0)).sum()):
        raise UnreadableFileError(
            f"{relpath!r} must show what it marks, got {hidden} pixels above 0 that are transparent; save it without transparency"
        )


def other_kind(content: bytes) -> str:
    """Name the kind of a file that is no picture, as far as its first bytes show, and the remedy."""
    if content[128:132] == b"DICM":
        return "a DICOM file without that ending; rename it to end with .dcm"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "a WebP file; convert it to PNG"
    return "a file of another kind; convert it"
