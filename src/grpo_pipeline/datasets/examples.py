"""Kedro dataset for a task's model input: one table, and NPY arrays that are mapped into memory when they are used."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
from kedro.io.core import AbstractDataset, DatasetError
from kedro_datasets._typing import TablePreview

from grpo_pipeline.core.storage.files import find_complete, replacing_folder
from grpo_pipeline.datasets.table import escaped, restored
from grpo_pipeline.tasks.attention.data.examples import ARRAYS, ExampleChunk, Examples, content_digest

# The folder of a data set's arrays while it is being written: NPY files that grow chunk by chunk.

Digest = Callable[[pd.DataFrame, Mapping[str, np.ndarray]], str]


class ExamplesFolder:
    """Rows are appended in order; ``finish`` puts the folder in place of the old one, ``abandon`` leaves nothing of it.

    The files are the bytes that ``numpy.save`` would write. They are appended to, not mapped: a full disk is then an error
    and not a signal that kills the process.

    Args:
        folder: the folder that is replaced.
        table: of the whole data set.
        clinical: names of its clinical columns.
    """

    def __init__(self, folder: Path, table: pd.DataFrame, *, clinical: tuple[str, ...] = ()) -> None:
        self.written = 0
        self._clinical = clinical
        self._table = table
        self._files: dict[str, BinaryIO] = {}
        self._stack = ExitStack()
        self._partial = self._stack.enter_context(replacing_folder(folder))

    def append(self, arrays: Mapping[str, np.ndarray], *, start: int) -> None:
        """Write the next rows of every array, whose first is row ``start``.

        Raises:
            DatasetError: if rows are missing before these, or an array holds Python objects.
        """
        if start != self.written:
            raise DatasetError(f"rows must be saved in order, got row {start} after {self.written} rows; save every chunk once")
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise DatasetError(f"the array {name} must hold numbers, got type {array.dtype}; nothing is pickled")
            if name not in self._files:
                self._files[name] = self._open(name, array)
            self._files[name].write(np.ascontiguousarray(array).data)
        self.written += len(arrays["images"])

    def finish(self, digest: Digest) -> None:
        """Write table and meta data and replace the old folder; the digest reads the arrays as memory maps."""
        for file in self._files.values():
            file.close()
        escaped(self._table).to_csv(self._partial / "table.csv", index=False)
        dtypes = {column: self._table[column].dtype.kind for column in self._table}
        meta = {"digest": digest(self._table, map_arrays(self._partial)), "dtypes": dtypes, "clinical": list(self._clinical)}
        (self._partial / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        self._stack.close()

    def abandon(self) -> None:
        """Give the folder up; the old one stays."""
        # An exception inside the context is what makes it remove the partial folder.
        self._stack.__exit__(DatasetError, DatasetError("abandoned"), None)

    def _open(self, name: str, array: np.ndarray) -> BinaryIO:
        file = self._stack.enter_context((self._partial / f"{name}.npy").open("wb"))
        shape = (len(self._table), *array.shape[1:])
        header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        return file


def map_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a folder as read-only memory maps."""
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS}


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
