"""The dataset of the dialogue task's model input: two tables and their digest."""

import json
import os
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset, DatasetError
from kedro_datasets._typing import TablePreview

from grpo_pipeline.core.atomic import find_complete, replacing_folder
from grpo_pipeline.datasets.json_lines import read_table, write_table
from grpo_pipeline.tasks.dialogue.examples import DialogueExamples, content_digest


class DialogueExamplesDataset(AbstractDataset[DialogueExamples, DialogueExamples]):
    """Keep ``DialogueExamples`` as a folder: ``examples.jsonl``, ``stories.jsonl``, ``meta.json``.

    The folder is replaced in one step.

    Args:
        filepath: the folder.
        metadata: for Kedro-Viz.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._folder = Path(os.path.abspath(filepath))
        self.metadata = metadata

    def load(self) -> DialogueExamples:
        """Read both tables.

        Raises:
            DatasetError: if the folder is missing or its content is not what was saved.
        """
        folder = find_complete(self._folder)
        if folder is None:
            raise DatasetError(
                f"{self._folder} must hold the model input, got nothing there; run the pipeline dialogue_data first"
            )
        table, stories = read_table(folder / "examples.jsonl"), read_table(folder / "stories.jsonl")
        digest = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["digest"]
        if content_digest(table, stories) != digest:
            raise DatasetError(f"{folder} must hold what was saved, got another digest; run the pipeline dialogue_data again")
        return DialogueExamples(table, stories, digest)

    def save(self, data: DialogueExamples) -> None:
        """Write tables and digest."""
        with replacing_folder(self._folder) as partial:
            write_table(partial / "examples.jsonl", data.table)
            write_table(partial / "stories.jsonl", data.stories)
            (partial / "meta.json").write_text(json.dumps({"digest": data.digest}), encoding="utf-8")

    def preview(self, nrows: int = 20) -> TablePreview:
        """Return the first examples for Kedro-Viz."""
        return TablePreview(self.load().table.head(nrows).to_dict(orient="split"))

    def _exists(self) -> bool:
        return find_complete(self._folder) is not None

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._folder)}
