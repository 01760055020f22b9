"""The dataset of the molecule task's model input: a table, classes, their meaning and a digest."""

import json
import os
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset, DatasetError
from kedro_datasets._typing import TablePreview
from safetensors.torch import load_file, save_file

from grpo_pipeline.core.atomic import find_complete, replacing_folder
from grpo_pipeline.datasets.json_lines import read_table, write_table
from grpo_pipeline.tasks.molecules.examples import MoleculeExamples, put_together
from grpo_pipeline.tasks.molecules.vocabulary import read_vocabulary


class MoleculeExamplesDataset(AbstractDataset[MoleculeExamples, MoleculeExamples]):
    """Keep ``MoleculeExamples`` as a folder: ``molecules.jsonl``, ``graphs.safetensors``, ``meta.json``.

    The folder is replaced in one step.

    Args:
        filepath: the folder.
        metadata: for Kedro-Viz.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._folder = Path(os.path.abspath(filepath))
        self.metadata = metadata

    def load(self) -> MoleculeExamples:
        """Read table, classes and vocabulary.

        Raises:
            DatasetError: if the folder is missing or its content is not what was saved.
        """
        folder = find_complete(self._folder)
        if folder is None:
            raise DatasetError(
                f"{self._folder} must hold the model input, got nothing there; run the pipeline molecules_data first"
            )
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        table, arrays = read_table(folder / "molecules.jsonl"), load_file(folder / "graphs.safetensors")
        examples = put_together(table, arrays, read_vocabulary(meta["vocabulary"]))
        if examples.digest != meta["digest"]:
            raise DatasetError(f"{folder} must hold what was saved, got another digest; run the pipeline molecules_data again")
        return examples

    def save(self, data: MoleculeExamples) -> None:
        """Write table, classes, vocabulary and digest."""
        meta = {"digest": data.digest, "vocabulary": data.vocabulary.to_json()}
        with replacing_folder(self._folder) as partial:
            write_table(partial / "molecules.jsonl", data.table)
            save_file(dict(data.arrays), partial / "graphs.safetensors")
            (partial / "meta.json").write_text(json.dumps(meta), encoding="utf-8")

    def preview(self, nrows: int = 20) -> TablePreview:
        """Return the first molecules for Kedro-Viz."""
        return TablePreview(self.load().table.head(nrows).to_dict(orient="split"))

    def _exists(self) -> bool:
        return find_complete(self._folder) is not None

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._folder)}
