"""Give every wanted frame of a file with several frames its own row."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo_pipeline.tasks.attention.data.case_folders import FRAME, CaseError, to_manifest
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, resolve_below
from grpo_pipeline.tasks.attention.data.image_formats import read_stack
from grpo_pipeline.tasks.attention.data.planes import SEVERAL_FILES, may_hold_slices, split_address
from grpo_pipeline.tasks.attention.data.table_columns import PATHS
from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError
from grpo_pipeline.tasks.attention.data.volume_params import VolumeParams


def expand_frames(
    raw: ImageFolder, columns: Any, folders: Any, volume: VolumeParams
) -> ImageFolder:
    """Give every wanted frame of a file its own row, whose paths name the plane (``planes.py``).

    A picture of a format with a single plane is frame 0. An unreadable file keeps its row, which the check refuses.
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
    """List name and address of every wanted frame of a file; empty if it is unreadable or has a single plane.

    Raises:
        CaseError: if a wanted index has no frame.
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
