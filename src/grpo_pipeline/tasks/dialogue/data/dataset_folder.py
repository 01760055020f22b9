"""Read the folder of a Hugging Face data set, as its ``save_to_disk`` writes it: Arrow files beside their names."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_pipeline.tasks.text_lines import TextFile

if TYPE_CHECKING:  # other data sets are read without it
    import pyarrow

SPLIT_OF = {
    "train": "train",
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    "test": "test",
}
"""Name of a folder of several data sets -> split of its rows."""


@dataclass(frozen=True)
class DatasetFolder(TextFile):
    """A folder in the place of a raw file; its digest is that of its Arrow files and their names."""

    def digest(self) -> str:
        """Return the SHA-256 of names and bytes, hexadecimal."""
        found = hashlib.sha256()
        for path in sorted(Path(self.path).rglob("*.arrow")):
            found.update(path.relative_to(self.path).as_posix().encode())
            found.update(TextFile(str(path)).digest().encode())
        return found.hexdigest()


def folders_by_split(folder: DatasetFolder) -> list[tuple[DatasetFolder, str]]:
    """List the data sets of a folder, each with the split of its rows; "" of a data set that stands alone.

    Raises:
        ValueError: if several data sets have other names than those of ``SPLIT_OF``, or are not those of all splits.
    """
    index = Path(folder.path) / "dataset_dict.json"
    if not index.is_file():
        return [(folder, "")]
    names = _named(index, "splits")
    if strange := sorted({*names} - {*SPLIT_OF}):
        raise ValueError(
            f"{index} must name splits of {list(SPLIT_OF)}, got {strange}; save one of the data sets by itself, or rename them"
        )
    if missing := sorted({*SPLIT_OF.values()} - {SPLIT_OF[name] for name in names}):
        raise ValueError(
            f"{index} must name data sets of train, validation and test, got none for {missing}; save one more, or name "
            f"one of them, such as {Path(folder.path).name}/{names[0]}, whose rows are then divided"
        )
    return [(DatasetFolder(f"{folder.path}/{name}"), SPLIT_OF[name]) for name in names]


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
