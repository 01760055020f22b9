"""The dataset of a task's model input: one table and NPY arrays that are mapped, not read, into memory."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kedro.io import AbstractDataset, DatasetError
from kedro_datasets._typing import TablePreview

from grpo_pipeline.core.atomic import find_complete, replacing_folder
from grpo_pipeline.tasks.attention.examples import Examples

ARRAYS = ("images", "region", "bag", "lesion")


class ExamplesDataset(AbstractDataset[Examples, Examples]):
    """Keep ``Examples`` as a folder: ``table.csv``, one ``.npy`` per array, and ``meta.json`` with types and digest.

    The folder is replaced in one step; nothing is pickled. Arrays come back as read-only memory maps.

    Args:
        filepath: the folder.
        metadata: for Kedro-Viz.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._folder = Path(os.path.abspath(filepath))
        self.metadata = metadata

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
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS}
        lengths = {"table": len(table)} | {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise DatasetError(f"{folder} must hold as many rows as images, got {lengths}; run the pipeline attention_data again")
        return Examples(table=table, digest=meta["digest"], **arrays)

    def save(self, data: Examples) -> None:
        """Write all parts, then put them in place of the old folder."""
        with replacing_folder(self._folder) as folder:
            data.table.to_csv(folder / "table.csv", index=False)
            for name in ARRAYS:
                np.save(folder / f"{name}.npy", np.asarray(getattr(data, name)), allow_pickle=False)
            dtypes = {column: data.table[column].dtype.kind for column in data.table}
            meta = {"digest": data.digest, "dtypes": dtypes}
            (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")

    def preview(self, nrows: int = 20) -> TablePreview:
        """Return the first rows of the table for Kedro-Viz."""
        return TablePreview(self.load().table.head(nrows).to_dict(orient="split"))

    def _exists(self) -> bool:
        return find_complete(self._folder) is not None

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._folder)}


def read_table(path: Path, dtypes: dict[str, str]) -> pd.DataFrame:
    """Read a CSV whose columns have the given kinds: i integer, f float, b truth value, anything else text."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    for column, kind in dtypes.items():
        if kind == "b":
            table[column] = table[column] == "True"
        elif kind == "i":
            table[column] = table[column].map(int).astype(np.int64)
        elif kind == "f":
            table[column] = table[column].map(lambda cell: float(cell or "nan")).astype(np.float64)
    return table
