"""The dataset of raw data that is one text file in a folder."""

import os
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset, DatasetError

from grpo_pipeline.core.atomic import replacing_folder
from grpo_pipeline.tasks.text_lines import TextFile


class RawFileDataset(AbstractDataset[dict[str, bytes], TextFile]):
    """Load the bytes of one file of a folder; save files by name, all of them or none.

    Args:
        filepath: the data root; Kedro makes a relative path in the catalogue relative to the project.
        file: name of the file below the root.
        task: whose data it is, for messages.
        metadata: for Kedro-Viz.
    """

    def __init__(self, *, filepath: str, file: str, task: str, metadata: dict[str, Any] | None = None) -> None:
        self._root = Path(os.path.abspath(filepath))
        self._file, self._task = file, task
        self.metadata = metadata

    def load(self) -> TextFile:
        """Read the file as it is.

        Raises:
            DatasetError: if the root or the file is missing.
        """
        if not self._root.is_dir():
            raise DatasetError(
                f"the data root must be an existing folder, got nothing at {self._root}; "
                f"set {self._task}_root in globals.yml or run with --params {self._task}.data.root=<folder>"
            )
        path = self._root / self._file
        if not path.is_file():
            found = sorted(p.name for p in self._root.iterdir() if p.is_file()) or "no file"
            raise DatasetError(f"{path} must hold the data, got {found} in that folder; set {self._task}_file in globals.yml")
        return TextFile(str(path), path.read_bytes())

    def save(self, data: dict[str, bytes]) -> None:
        """Put a folder with these files in place of the old one; without files nothing is written."""
        if not data:
            return
        with replacing_folder(self._root) as partial:
            for name, content in data.items():
                (partial / name).write_bytes(content)

    def _exists(self) -> bool:
        return (self._root / self._file).is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._root), "file": self._file, "task": self._task}
