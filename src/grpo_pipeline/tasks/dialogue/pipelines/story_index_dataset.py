"""Store the index of stories as a Kedro dataset: vocabulary and ids as JSON, numbers as safetensors."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from kedro.io import AbstractDataset, DatasetError
from safetensors.numpy import load_file, save_file
from scipy.sparse import csr_array

from grpo_pipeline.core.storage.replacement import find_complete, replacing_folder
from grpo_pipeline.tasks.dialogue.data.story_index import StoryIndex


class StoryIndexDataset(AbstractDataset[StoryIndex, StoryIndex]):
    """Stores a ``StoryIndex`` in a folder, as ``index.json`` and ``matrix.safetensors``, without pickles.

    A sparse matrix is kept as the three arrays of its compressed rows: ``data``, ``indices``, ``indptr``.

    Args:
        filepath: the folder, replaced in one step.
        metadata: for Kedro-Viz.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._folder = Path(os.path.abspath(filepath))
        self.metadata = metadata

    def load(self) -> StoryIndex:
        """Read the index.

        Raises:
            DatasetError: if the folder is missing.
        """
        folder = find_complete(self._folder)
        if folder is None:
            raise DatasetError(
                f"{self._folder} must hold a story index, got nothing there; run the pipeline dialogue_data first"
            )
        meta = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        arrays = load_file(folder / "matrix.safetensors")
        is_sparse = "indptr" in arrays
        parts = (arrays["data"], arrays["indices"], arrays["indptr"]) if is_sparse else ()
        matrix = csr_array(parts, shape=tuple(meta["shape"])) if is_sparse else arrays["dense"]
        return StoryIndex(
            meta["encoder"],
            tuple(meta["story_ids"]),
            tuple(meta["owners"]),
            matrix,
            meta["vocabulary"],
            arrays["idf"],
        )

    def save(self, data: StoryIndex) -> None:
        """Write the index."""
        matrix = data.matrix
        is_dense = isinstance(matrix, np.ndarray)
        arrays = (
            {"dense": matrix}
            if is_dense
            else {name: getattr(matrix, name) for name in ("data", "indices", "indptr")}
        )
        meta = {
            "encoder": data.encoder,
            "shape": list(matrix.shape),
            "story_ids": data.story_ids,
            "owners": data.owners,
            "vocabulary": data.vocabulary,
        }
        with replacing_folder(self._folder) as partial:
            save_file(
                {
                    name: np.ascontiguousarray(array)
                    for name, array in {**arrays, "idf": data.idf}.items()
                },
                partial / "matrix.safetensors",
            )
            (partial / "index.json").write_text(
                json.dumps(meta, ensure_ascii=False), encoding="utf-8"
            )

    def _exists(self) -> bool:
        return find_complete(self._folder) is not None

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._folder)}
