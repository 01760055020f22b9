"""Several pictures a case: open folders of cases and cine files row by row, and combine what is said of frames.

A row of an opened data set is one picture. A folder per case (``<case>/image.png``, masks, ``info.json``) becomes the row, or the
rows, that a manifest would have for it; a file with several frames becomes a row for each that is wanted. Only names and headers
are read here, pixels when a row is checked or built.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, resolve_below
from grpo_pipeline.tasks.attention.data.image_formats import read_stack
from grpo_pipeline.tasks.attention.data.params import FRAME_COLUMN, PATHS, VolumeParams
from grpo_pipeline.tasks.attention.data.planes import (
    SEVERAL_FILES,
    UnreadableFileError,
    may_hold_slices,
    split_address,
)
from grpo_pipeline.tasks.text_lines import composed

CASE, FRAME = "<case>", "<frame>"
"""Columns that an opened data set has beside its own: the folder of the case, and the frame inside its core."""
SHOWN = 5
"""Names that a message gives as examples."""


class CaseError(ValueError):
    """A case cannot be opened; the message is one sentence."""


@dataclass(frozen=True)
class Opened:
    """A data set whose rows are pictures, and the columns that they have.

    Attributes:
        raw: the data root; rows of one case or of one file share their line.
        columns: the mapping of the columns, with those that opening added.
    """

    raw: ImageFolder
    columns: Any


def open_rows(
    raw: ImageFolder,
    columns: Any,
    folders: Any,
    volume: VolumeParams | None,
    *,
    may_be_empty: Collection[str],
    section: str,
) -> Opened:
    """Turn folders of cases and files with frames into one row per picture; a data set without either stays as it is.

    Args:
        raw: the data root.
        columns: attribute -> column of a manifest, or file and field of a folder per case; None where there is none.
        folders: attribute -> folder that is put before the paths of a manifest.
        volume: which planes of a file with several are wanted.
        may_be_empty: attributes of masks that a case may lack.
        section: of the parameters, for messages.
    """
    if raw.cases:
        raw = open_cases(raw, columns, may_be_empty=may_be_empty, section=section)
        if columns.core_id is None:
            columns = columns.model_copy(update={"core_id": CASE})
        if columns.frame is None and "*" in columns.image:
            columns = columns.model_copy(update={"frame": FRAME})
    if volume is not None and volume.take == "frames":
        raw = expand_frames(raw, columns, folders, volume)
        columns = columns.model_copy(update={"frame": FRAME})
    return Opened(raw, columns)


# A folder per case.


def list_cases(root: Path, pattern: str) -> ImageFolder:
    """List the folders that ``<folders>/info.json`` means, with or without such a file; nothing in them is read yet.

    Args:
        root: the data root.
        pattern: such as ``*/info.json`` or ``*/*/info.json``, relative to the root.

    Raises:
        ValueError: if there is no such folder.
    """
    folders, _, name = pattern.rpartition("/")
    found = sorted(
        str(path.relative_to(root).as_posix())
        for path in (root.glob(folders) if folders else ())
        if path.is_dir() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
    if not found:
        raise ValueError(
            f"{root} must hold a folder for each case, {pattern!r}, got none; correct the root or the pattern"
        )
    lines = pd.Index(range(1, len(found) + 1), name="line")
    manifest = pd.DataFrame({CASE: found}, index=lines, dtype=str)
    return ImageFolder(root, manifest, root / folders / name, cases=tuple(found))


def open_cases(
    raw: ImageFolder, columns: Any, *, may_be_empty: Collection[str], section: str
) -> ImageFolder:
    """Read ``info.json`` and match the files of every case; a case that cannot be opened is a row with a fault."""
    patterns: dict[str, str] = {
        name: pattern for name in PATHS if (pattern := getattr(columns, name, None)) is not None
    }
    infos, faults = {}, {}
    for line, case in enumerate(raw.cases, start=1):
        try:
            infos[line] = read_info(raw.root, case, raw.manifest_path.name)
        except CaseError as error:
            faults[line] = str(error)
    # A field that no case has is a column that is not there, as in a manifest.
    known = set().union(*infos.values())
    fields = [name for name in mapped_fields(columns, patterns) if name in known]
    records: list[tuple[int, dict[str, str]]] = []
    for line, case in enumerate(raw.cases, start=1):
        named = {CASE: case}
        try:
            if line in infos:
                cells = read_fields(
                    infos[line], fields, path=f"{case}/{raw.manifest_path.name}", section=section
                )
                pictures = match_files(
                    raw.root, case, patterns, may_be_empty=may_be_empty, section=section
                )
                records += [(line, named | cells | picture) for picture in pictures]
                continue
        except CaseError as error:
            faults[line] = str(error)
        records.append((line, named))
    # The same holds for a mask that no case has; the image's column is there in any case.
    names = dict.fromkeys([CASE, *sorted(known), columns.image])
    for _, cells in records:
        names |= dict.fromkeys(name for name, cell in cells.items() if cell)
    return replace(raw, manifest=to_manifest(records, list(names)), faults=faults)


def mapped_fields(columns: Any, patterns: Mapping[str, str]) -> list[str]:
    """Return the names of the fields that the columns stand for, without those of files."""
    named = [
        value
        for name in type(columns).model_fields
        if name not in patterns
        for value in (getattr(columns, name),)
    ]
    flat = [one for value in named for one in (value if isinstance(value, tuple) else (value,))]
    return [name for name in dict.fromkeys(flat) if name is not None and name != CASE]


def to_manifest(records: Sequence[tuple[int, Mapping[str, str]]], names: list[str]) -> pd.DataFrame:
    """Return the rows as a manifest, the index being the line of each; what a row lacks is empty."""
    index = pd.Index([line for line, _ in records], name="line")
    rows = [[cells.get(name, "") for name in names] for _, cells in records]
    return pd.DataFrame(rows, columns=names, index=index, dtype=str)


def read_info(root: Path, case: str, name: str) -> dict[str, Any]:
    """Return the fields of a case's JSON file.

    Raises:
        CaseError: if the folder has none, or it is no JSON object.
    """
    path = root / case / name
    if not path.is_file():
        raise CaseError(
            f"{case!r} must hold {name!r}, got {listed(root / case)}; add it or remove the folder"
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise CaseError(
            f"{f'{case}/{name}'!r} must be JSON text in UTF-8, got {error}; correct it"
        ) from error
    if not isinstance(found, dict):
        raise CaseError(
            f"{f'{case}/{name}'!r} must be a JSON object of fields, got a {type(found).__name__}; write {{...}}"
        )
    return found


def listed(folder: Path) -> str:
    """Return what a folder holds, as a message says it."""
    names = sorted(path.name for path in folder.iterdir())
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more if names else "an empty folder"


def read_fields(
    info: Mapping[str, Any], fields: Sequence[str], *, path: str, section: str
) -> dict[str, str]:
    """Return the fields as the text that a manifest would hold.

    Raises:
        CaseError: if one is missing, or a list or an object.
    """
    cells = {}
    for name in fields:
        if name not in info:
            raise CaseError(
                f"{path!r} must have the field {name!r}, got {sorted(info)}; add it, null where it is unknown, or correct "
                f"{section}.columns"
            )
        value = info[name]
        if isinstance(value, list | dict):
            kind = "a list" if isinstance(value, list) else "an object"
            raise CaseError(
                f"{path!r} must have text, a number, true, false or null as {name!r}, got {kind}; correct it"
            )
        text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
        cells[name] = composed(text.strip())
    return cells


def match_files(
    root: Path,
    case: str,
    patterns: Mapping[str, str],
    *,
    may_be_empty: Collection[str],
    section: str,
) -> list[dict[str, str]]:
    """Return the files of each picture of a case, below the root, in a cell for each pattern.

    With ``*`` in the image's pattern every file that matches is a frame, named by what stands for ``*``; a mask with ``*``
    belongs to the frame of that name, one without to all of them. Without it all masks belong to the one image.

    Raises:
        CaseError: if the image or a mask that must be there is not, or a mask belongs to no image.
    """
    folder = root / case
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    masks = {
        name: [
            found
            for part in pattern.split(SEVERAL_FILES)
            for found in matches(part.strip(), names, star=".*")
        ]
        for name, pattern in patterns.items()
        if name != "image"
    }
    taken = {file for found in masks.values() for file, _ in found}
    images = [one for one in matches(patterns["image"], names, star=".+") if one[0] not in taken]
    if not images:
        raise CaseError(
            f"{case!r} must hold the image {patterns['image']!r}, got {listed(folder)}; add it or correct "
            f"{section}.columns.image"
        )
    pictures = []
    for image, frame in images:
        cells = {patterns["image"]: f"{case}/{image}"} | ({FRAME: frame} if frame else {})
        for name, found in masks.items():
            own = [file for file, star in found if not frame or star in ("", frame)]
            if not own and name not in may_be_empty:
                raise CaseError(
                    f"{case!r} must hold the {name} {patterns[name]!r} of {image!r}, got {listed(folder)}; add it, or set "
                    f"{section}.columns.{name}: null"
                )
            cells[patterns[name]] = SEVERAL_FILES.join(f"{case}/{file}" for file in own)
        pictures.append(cells)
    frames, shown = {frame for _, frame in images}, [name for name, _ in images][:SHOWN]
    for found in masks.values():
        for file, star in found:
            if "" not in frames and star and star not in frames:
                raise CaseError(
                    f"{f'{case}/{file}'!r} must belong to an image of its case, got images {shown}; "
                    "name it as its image, or remove it"
                )
    return pictures


def matches(pattern: str, names: Sequence[str], *, star: str) -> list[tuple[str, str]]:
    """Return the names that a pattern means, each with the text that stands for ``*``, "" without one.

    Args:
        pattern: a name, with ``*`` in it or without.
        names: of files.
        star: regular expression of what ``*`` stands for.
    """
    compiled = re.compile(f"({star})".join(map(re.escape, composed(pattern).split("*"))))
    found = ((name, compiled.fullmatch(composed(name))) for name in names)
    return [(name, "-".join(match.groups())) for name, match in found if match]


# Files with several frames.


def expand_frames(
    raw: ImageFolder, columns: Any, folders: Any, volume: VolumeParams
) -> ImageFolder:
    """Give every wanted frame of a file a row of its own, whose paths say which plane they mean (``planes.py``).

    A picture of a format with one plane is a frame 0. A file that cannot be read stays one row, which the check refuses.
    """
    records: list[tuple[int, dict[str, str]]] = []
    faults = dict(raw.faults)
    if columns.image not in raw.manifest:
        return raw
    named_files: set[str] = {str(getattr(columns, name, None)) for name in PATHS}
    paths = named_files & set(raw.manifest.columns)
    for line, *texts in raw.manifest.itertuples(name=None):
        cells = dict(zip(raw.manifest.columns, texts, strict=True))
        own = cells.get(columns.frame or "", "")
        try:
            chosen = (
                []
                if line in faults
                else frames_of(raw, cells[columns.image], folders.image, volume)
            )
        except CaseError as error:
            faults[line], chosen = str(error), []
        for frame, address in chosen or [("0", "")]:
            addressed = {
                column: SEVERAL_FILES.join(
                    file + address if may_hold_slices(file) else file
                    for file in map(str.strip, cells[column].split(SEVERAL_FILES))
                )
                for column in paths
            }
            named = {FRAME: f"{own}/{frame}" if own else frame}
            records.append((line, cells | addressed | named))
    names = [*dict.fromkeys([*raw.manifest.columns, FRAME])]
    return replace(raw, manifest=to_manifest(records, names), faults=faults)


def frames_of(
    raw: ImageFolder, cell: str, folder: str, volume: VolumeParams
) -> list[tuple[str, str]]:
    """Return name and address of every frame that is wanted of a file, none where it cannot be read or has one plane.

    Raises:
        CaseError: if it has no frame of an index that is asked for.
    """
    path = f"{folder.rstrip('/')}/{cell}" if folder and cell else cell
    if not may_hold_slices(path) or split_address(path)[1] is not None:
        return []
    try:
        file = resolve_below(raw.root, path.partition("::")[0])
        stack = read_stack(file, path, as_mask=False)
    except UnreadableFileError:
        return []
    count = stack.values.shape[volume.axis]
    numbers: Sequence[int] = range(count)
    if isinstance(volume.frames, tuple):
        numbers = volume.frames
        if (last := max(numbers)) >= count:
            raise CaseError(
                f"{path!r} must have a frame {last} along axis {volume.axis}, got {count} counted from 0; correct "
                "attention.data.volume.frames or axis"
            )
    elif volume.frames != "all":
        numbers = range(0, count, int(str(volume.frames).removeprefix("every ")))
    width = len(str(count - 1))
    return [(f"{i:0{width}d}", f"#axis={volume.axis},take=index,index={i}") for i in numbers]


def core_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the first row of every core: what counts cores must not count their frames."""
    return table.drop_duplicates("core_id") if FRAME_COLUMN in table else table


def picture_names(table: pd.DataFrame) -> pd.Series:
    """Return the name of every row: the core, and behind it the frame where a core has several."""
    if FRAME_COLUMN not in table:
        return table["core_id"]
    return table["core_id"].astype(str) + " / " + table[FRAME_COLUMN].astype(str)
