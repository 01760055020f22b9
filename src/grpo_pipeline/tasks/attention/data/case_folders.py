"""Convert folders of cases into the rows of a manifest."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.planes import SEVERAL_FILES
from grpo_pipeline.tasks.attention.data.table_columns import PATHS
from grpo_pipeline.tasks.text_lines import composed

CASE, FRAME = "<case>", "<frame>"
"""Columns that an opened data set has beside its own: the folder of the case, and the frame inside its core."""

SHOWN = 5
"""Names that a message gives as examples."""


class CaseError(ValueError):
    """A case that cannot be opened; the message is a single sentence."""


def list_cases(root: Path, pattern: str) -> ImageFolder:
    """List the folders that match ``<folders>/info.json``, with or without such a file; no file is read yet.

    Args:
        root: the data root.
        pattern: such as ``*/info.json`` or ``*/*/info.json``, relative to the root.

    Raises:
        ValueError: if no folder matches.
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
    # A field that no case has is a missing column, as in a manifest.
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
    # So is a mask that no case has; the image's column always exists.
    names = dict.fromkeys([CASE, *sorted(known), columns.image])
    for _, cells in records:
        names |= dict.fromkeys(name for name, cell in cells.items() if cell)
    return replace(raw, manifest=to_manifest(records, list(names)), faults=faults)


def mapped_fields(columns: Any, patterns: Mapping[str, str]) -> list[str]:
    """List the fields that columns are mapped to, without those of files."""
    named = [
        value
        for name in type(columns).model_fields
        if name not in patterns
        for value in (getattr(columns, name),)
    ]
    flat = [one for value in named for one in (value if isinstance(value, tuple) else (value,))]
    return [name for name in dict.fromkeys(flat) if name is not None and name != CASE]


def to_manifest(records: Sequence[tuple[int, Mapping[str, str]]], names: list[str]) -> pd.DataFrame:
    """Build a manifest of the rows, indexed by their lines; missing cells are empty."""
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
    """Write the content of a folder, for a message."""
    names = sorted(path.name for path in folder.iterdir())
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more if names else "an empty folder"


def read_fields(
    info: Mapping[str, Any], fields: Sequence[str], *, path: str, section: str
) -> dict[str, str]:
    """Write the fields in the text form of a manifest.

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
    """Find the files of each picture of a case, below the root: a cell for each pattern.

    With ``*`` in the image's pattern, every matching file is a frame, named by the text in place of ``*``. A mask with ``*``
    belongs to the frame of that name, a mask without to all frames. Without ``*`` there is a single image, to which all masks
    belong.

    Raises:
        CaseError: if the image or a required mask is missing, or a mask belongs to no image.
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
    """Find the names that match a pattern, each with the text in place of ``*``, "" without ``*``.

    Args:
        pattern: a name, with or without ``*``.
        names: names of files.
        star: regular expression in place of ``*``.
    """
    compiled = re.compile(f"({star})".join(map(re.escape, composed(pattern).split("*"))))
    found = ((name, compiled.fullmatch(composed(name))) for name in names)
    return [(name, "-".join(match.groups())) for name, match in found if match]
