"""The dataset of the dialogue task's raw data: a file of examples and a story corpus in one folder."""

import os
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset, DatasetError

from grpo_pipeline.core.atomic import replacing_folder
from grpo_pipeline.tasks.dialogue.text_files import DialogueFiles
from grpo_pipeline.tasks.text_lines import TextFile


class DialogueFolderDataset(AbstractDataset[dict[str, bytes], DialogueFiles]):
    """Load the bytes of the examples and of the stories; save files by name, all of them or none.

    Args:
        filepath: the data root; Kedro makes a relative path in the catalogue relative to the project.
        examples: name of the file of rows or conversations below the root.
        stories: name of the story corpus below the root; it may be absent.
        metadata: for Kedro-Viz.
    """

    def __init__(
        self,
        *,
        filepath: str,
        examples: str = "examples.jsonl",
        stories: str = "stories.jsonl",
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._root = Path(os.path.abspath(filepath))
        self._examples, self._stories = examples, stories
        self.metadata = metadata

    def load(self) -> DialogueFiles:
        """Read both files as they are; what is in them is judged by ``tasks.dialogue.checks``.

        Raises:
            DatasetError: if the root or the file of examples is missing.
        """
        if not self._root.is_dir():
            raise DatasetError(
                f"the data root must be an existing folder, got nothing at {self._root}; "
                "set dialogue_root in globals.yml or run with --params dialogue.data.root=<folder>"
            )
        path = self._root / self._examples
        if not path.is_file():
            found = sorted(p.name for p in self._root.iterdir() if p.is_file()) or "no file"
            raise DatasetError(f"{path} must hold the examples, got {found} in that folder; set dialogue_examples in globals.yml")
        corpus = self._root / self._stories
        stories = TextFile(str(corpus), corpus.read_bytes()) if corpus.is_file() else None
        return DialogueFiles(self._root, TextFile(str(path), path.read_bytes()), stories)

    def save(self, data: dict[str, bytes]) -> None:
        """Put a folder with these files in place of the old one; without files nothing is written."""
        if not data:
            return
        with replacing_folder(self._root) as partial:
            for name, content in data.items():
                (partial / name).write_bytes(content)

    def _exists(self) -> bool:
        return (self._root / self._examples).is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._root), "examples": self._examples, "stories": self._stories}
