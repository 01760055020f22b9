"""Store raw data in a text file of a folder; base class of all datasets of raw text."""

import os
from pathlib import Path
from typing import Any, Literal, TypeVar

from kedro.io.core import AbstractDataset, DatasetError

from grpo_pipeline.core.storage.replacement import replacing_folder
from grpo_pipeline.datasets.origin import where_to_get
from grpo_pipeline.tasks.text_lines import TextFile

Loaded = TypeVar("Loaded")


class RawFolderDataset(AbstractDataset[dict[str, bytes] | Literal[False], Loaded]):
    """A folder of text files that is saved as a whole; subclasses decide what they load.

    Args:
        filepath: the data root; Kedro makes a relative path in the catalogue relative to the project.
        task: name of the task, for messages.
        metadata: for Kedro-Viz.
    """

    is_keyed = True  # of the user

    def __init__(self, *, filepath: str, task: str, metadata: dict[str, Any] | None = None) -> None:
        self._root = Path(os.path.abspath(filepath))
        self._task = task
        self.metadata = metadata

    def save(self, data: dict[str, bytes] | Literal[False]) -> None:
        """Replace the folder by one with these files; without files nothing is written."""
        if not data:
            return
        with replacing_folder(self._root) as partial:
            for name, content in data.items():
                (partial / name).write_bytes(content)

    def _read(self, file: str, *, holds: str, setting: str) -> TextFile:
        """Open a file below the root as a stream.

        Args:
            file: its name.
            holds: what must be in it, for the message.
            setting: the key of globals.yml that names it.

        Raises:
            DatasetError: if the root or the file is missing.
        """
        if not self._root.is_dir():
            raise DatasetError(
                f"the data root must be an existing folder, got nothing at {self._root}; "
                f"set {self._task}_root in globals.yml or run with --params {self._task}.data.root=<folder>"
                f"{where_to_get(self.metadata)}"
            )
        path = self._root / file
        if not path.is_file():
            found = sorted(p.name for p in self._root.iterdir() if p.is_file()) or "no file"
            raise DatasetError(
                f"{path} must hold {holds}, got {found} in that folder; set {setting} in globals.yml"
                f"{where_to_get(self.metadata)}"
            )
        return TextFile(str(path))


class RawFileDataset(RawFolderDataset[TextFile]):
    """Opens a file of a folder; saves files by name, all of them or none.

    Args:
        filepath: the data root.
        file: name of the file below the root.
        task: name of the task, for messages.
        metadata: for Kedro-Viz.
    """

    def __init__(
        self, *, filepath: str, file: str, task: str, metadata: dict[str, Any] | None = None
    ) -> None:
        super().__init__(filepath=filepath, task=task, metadata=metadata)
        self._file = file

    def load(self) -> TextFile:
        """Open the file as a stream; raises ``DatasetError`` if the root or the file is missing."""
        return self._read(self._file, holds="the data", setting=f"{self._task}_file")

    def _exists(self) -> bool:
        return (self._root / self._file).is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._root), "file": self._file, "task": self._task}
