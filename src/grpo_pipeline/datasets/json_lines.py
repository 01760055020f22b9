"""A table as JSON lines: lists stay lists, and a text such as 0012 stays a text."""

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
from kedro.io.core import AbstractDataset, DatasetError
from kedro_datasets._typing import TablePreview
from safetensors.torch import load_file, save_file

from grpo_pipeline.core.storage.files import find_complete, replacing_folder
from grpo_pipeline.tasks.dialogue.data.examples import DialogueExamples, content_digest
from grpo_pipeline.tasks.molecules.data.examples import MoleculeExamples, put_together
from grpo_pipeline.tasks.molecules.graphs.vocabulary import read_vocabulary


class JsonLinesDataset(AbstractDataset[pd.DataFrame, pd.DataFrame]):
    """Keep a table as one JSON object per row; the columns stand in the first line.

    Args:
        filepath: the file; Kedro makes a relative path in the catalogue relative to the project.
        metadata: for Kedro-Viz.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._path = Path(os.path.abspath(filepath))
        self.metadata = metadata

    def load(self) -> pd.DataFrame:
        """Read the table.

        Raises:
            DatasetError: if there is no such file.
        """
        if not self._path.is_file():
            raise DatasetError(f"{self._path} must hold a table, got nothing there; run the pipeline that writes it first")
        return read_table(self._path)

    def save(self, data: pd.DataFrame) -> None:
        """Write the table; a file that is there already is replaced in one step."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f"{self._path.name}.partial-{os.getpid()}")
        try:
            write_table(partial, data)
            partial.replace(self._path)
        finally:
            partial.unlink(missing_ok=True)

    def preview(self, nrows: int = 20) -> TablePreview:
        """Return the first rows for Kedro-Viz."""
        return TablePreview(self.load().head(nrows).to_dict(orient="split"))

    def _exists(self) -> bool:
        return self._path.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._path)}


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write the list of columns and then one object per row."""
    rows = [list(table.columns), *table.to_dict(orient="records")]
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")


def read_table(path: Path) -> pd.DataFrame:
    """Read what ``write_table`` wrote."""
    columns, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line)
    return pd.DataFrame(rows, columns=columns)


# The dataset of the dialogue task's model input: two tables and their digest.


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


# The dataset of the molecule task's model input: a table, classes, their meaning and a digest.


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
