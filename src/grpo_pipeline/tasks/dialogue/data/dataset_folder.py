"""Read a folder of examples: a Hugging Face data set, as its ``save_to_disk`` writes it, or files for each split."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from grpo_pipeline.tasks.dialogue.data.drafts import SPLITS
from grpo_pipeline.tasks.splits import SPLIT_OF, split_name_in
from grpo_pipeline.tasks.text_lines import TextFile

if TYPE_CHECKING:  # other data sets are read without it
    import pyarrow


PARTS = (".jsonl", ".csv", ".tsv", ".parquet", ".json")
"""Endings of the files of splits."""


@dataclass(frozen=True)
class DatasetFolder(TextFile):
    """A folder in the place of a raw file; its digest is that of its Arrow files and files of splits, and of their names."""

    def open(self) -> NoReturn:
        """Refuse to read the folder as a file."""
        raise ValueError(
            f"{self.path} must be a file for this dialogue.data.source, got a folder; name a file in it"
        )

    def digest(self) -> str:
        """Return the SHA-256 of names and bytes, hexadecimal."""
        found, folder = hashlib.sha256(), Path(self.path)
        for path in sorted(
            {*folder.rglob("*.arrow"), *folder.glob("*.jsonl"), *files_of_splits(folder)}
        ):
            found.update(path.relative_to(self.path).as_posix().encode())
            found.update(TextFile(str(path)).digest().encode())
        return found.hexdigest()


def parts_by_split(file: TextFile) -> list[tuple[TextFile, str]]:
    """List the files or data sets that hold the examples, each with the split of its rows as ``splits_of`` names it.

    It is "" of a file or a data set that stands alone.

    Raises:
        ValueError: as ``splits_of``.
    """
    if not isinstance(file, DatasetFolder):
        return [(file, "")]
    found = files_of_splits(Path(file.path))
    beside = Path(file.path).glob("*.jsonl") if all(p.suffix == ".jsonl" for p in found) else ()
    unnamed = [path.stem for path in beside if path not in found]
    if not found and not unnamed:
        return [*folders_by_split(file)]
    splits = splits_of([*found.values(), *unnamed], where=file.path)
    return [(TextFile(str(path)), splits[name]) for path, name in found.items()]


def files_of_splits(folder: Path) -> dict[Path, str]:
    """Find the files of a folder, and of ``data`` in it, that are named after a split; returns file -> that name, sorted.

    ``train.csv`` is, and ``data/test-00000-of-00001.parquet``, as a data set of the Hugging Face hub has it. All have the same
    ending: the first of ``PARTS`` with which there is a file of train.
    """
    files = sorted([*folder.glob("*"), *(folder / "data").glob("*")])
    for ending in PARTS:
        of_ending = (path for path in files if path.suffix.lower() == ending)
        named = {path: name for path in of_ending if (name := split_name_in(path.stem))}
        if "train" in named.values():
            return named
    return {}


def folders_by_split(folder: DatasetFolder) -> list[tuple[DatasetFolder, str]]:
    """List the data sets that ``save_to_disk`` wrote into a folder; as ``parts_by_split``."""
    index = Path(folder.path) / "dataset_dict.json"
    if not index.is_file():
        return [(folder, "")]
    splits = splits_of(_named(index, "splits"), where=str(index))
    return [(DatasetFolder(f"{folder.path}/{name}"), split) for name, split in splits.items()]


def splits_of(names: Sequence[str], *, where: str) -> dict[str, str]:
    """Map the name of each part of a folder -> the split of its rows.

    That of ``train`` also names the splits without a part, such as ``train+test``: its personas are divided among them.

    Args:
        names: the parts.
        where: the folder or the file that names them, for the message.

    Raises:
        ValueError: if a name is none of ``SPLIT_OF``, or none of them is ``train``.
    """
    strange = sorted({*names} - {*SPLIT_OF})
    if strange or "train" not in names:
        got = strange or sorted(names)
        raise ValueError(
            f"{where} must have a part train and others of {[name for name in SPLIT_OF if name != 'train']}, got {got}; "
            "rename them, or name one alone"
        )
    found = {name: SPLIT_OF[name] for name in names}
    return found | {"train": "+".join(["train", *(s for s in SPLITS if s not in found.values())])}


def describe_parts(parts: Sequence[tuple[TextFile, str]]) -> dict[str, object]:
    """Write which split the rows of each part are in, for the report; nothing of a part that stands alone."""
    return {"splits_by_part": {Path(p.path).name: s for p, s in parts}} if len(parts) > 1 else {}


def read_table(folder: DatasetFolder) -> "pyarrow.Table":
    """Read all rows of a data set, in the order of its files.

    Raises:
        ValueError: if the folder is no data set, or a file is missing or no Arrow stream.
    """
    import pyarrow
    from pyarrow import ipc

    index = Path(folder.path) / "state.json"
    if not index.is_file():
        raise ValueError(
            f"{folder.path} must be a data set that save_to_disk wrote, got a folder without state.json; name a file in it"
        )
    tables = []
    for entry in _named(index, "_data_files"):
        path = index.with_name(str(entry["filename"]))
        try:
            with path.open("rb") as content:
                tables.append(ipc.open_stream(content).read_all())
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(
                f"{path} must be an Arrow stream, got {error}; save it again"
            ) from error
    return pyarrow.concat_tables(tables)


def _named(index: Path, key: str) -> list[Any]:
    try:
        found = json.loads(index.read_text(encoding="utf-8"))[key]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{index} must be JSON with {key!r}, got {type(error).__name__}: {error}; save the data set again"
        ) from error
    return list(found)
