"""The dataset of a task's model input: one table and NPY arrays that are mapped, not read, into memory."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kedro.io import AbstractDataset, DatasetError
from kedro_datasets._typing import TablePreview

from grpo_pipeline.core.atomic import find_complete
from grpo_pipeline.datasets.examples_folder import Digest, ExamplesFolder, map_arrays
from grpo_pipeline.datasets.table import restored
from grpo_pipeline.tasks.attention.build_examples import content_digest
from grpo_pipeline.tasks.attention.examples import ARRAYS, ExampleChunk, Examples


class ExamplesDataset(AbstractDataset[Examples | ExampleChunk, Examples]):
    """Keep ``Examples`` as a folder: ``table.csv``, one ``.npy`` per array, and ``meta.json``.

    The last holds the types of the columns, which of them are clinical, and the digest.

    Saved whole or chunk by chunk, the folder is replaced in one step; nothing is pickled. Arrays come back as read-only
    memory maps, so that a data set may be larger than memory.

    Args:
        filepath: the folder.
        metadata: for Kedro-Viz.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._folder = Path(os.path.abspath(filepath))
        self.metadata = metadata
        self._open: ExamplesFolder | None = None

    def load(self) -> Examples:
        """Map the arrays and read the table with the types it was saved with.

        Raises:
            DatasetError: if the folder is missing or its parts do not belong together.
        """
        folder = find_complete(self._folder)
        if folder is None:
            raise DatasetError(
                f"{self._folder} must hold the model input, got nothing there; run the pipeline attention_data first"
            )
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        table = read_table(folder / "table.csv", meta["dtypes"])
        arrays = map_arrays(folder)
        lengths = {"table": len(table)} | {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise DatasetError(f"{folder} must hold as many rows as images, got {lengths}; run the pipeline attention_data again")
        return Examples(table=table, digest=meta["digest"], clinical=tuple(meta.get("clinical", ())), **arrays)

    def save(self, data: Examples | ExampleChunk) -> None:
        """Write a whole data set, or add a chunk to the folder that is being written; the last one puts it in place.

        Raises:
            DatasetError: if chunks do not follow each other.
        """
        arrays = {name: np.asanyarray(getattr(data, name)) for name in ARRAYS}
        start = 0 if isinstance(data, Examples) else data.start
        if start == 0:
            self._discard()
            self._open = ExamplesFolder(self._folder, data.table, clinical=data.clinical)
        if self._open is None:
            raise DatasetError(f"chunks for {self._folder} must start with row 0, got row {start}; save them in order")
        try:
            self._open.append(arrays, start=start)
            if isinstance(data, Examples):
                self._finish(lambda table, mapped: data.digest)
            elif data.is_last:
                self._finish(lambda table, mapped: content_digest(table, mapped.values()))
        except BaseException:
            self._discard()
            raise

    def preview(self, nrows: int = 20) -> TablePreview:
        """Return the first rows of the table for Kedro-Viz."""
        return TablePreview(self.load().table.head(nrows).to_dict(orient="split"))

    def _finish(self, digest: Digest) -> None:
        if self._open is not None:
            self._open.finish(digest)
            self._open = None

    def _release(self) -> None:
        """Give up a folder that was not completed; nothing of it stays."""
        self._discard()

    def _discard(self) -> None:
        if self._open is not None:
            abandoned, self._open = self._open, None
            abandoned.abandon()

    def _exists(self) -> bool:
        return find_complete(self._folder) is not None

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._folder)}


def read_table(path: Path, dtypes: dict[str, str]) -> pd.DataFrame:
    """Read a CSV whose columns have the given kinds: i integer, f float, b truth value, anything else text."""
    table = restored(pd.read_csv(path, dtype=str, keep_default_na=False))
    for column, kind in dtypes.items():
        if kind == "b":
            table[column] = table[column] == "True"
        elif kind == "i":
            table[column] = table[column].map(int).astype(np.int64)
        elif kind == "f":
            table[column] = table[column].map(lambda cell: float(cell or "nan")).astype(np.float64)
    return table
