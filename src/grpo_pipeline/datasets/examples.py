"""Store a task's model input: tables as JSON lines, and NPY arrays that are memory-mapped on use."""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
from kedro.io.core import AbstractDataset, DatasetError
from kedro_datasets._typing import TablePreview

from grpo_pipeline.core.storage.replacement import find_complete, replacing_folder
from grpo_pipeline.datasets.json_lines import read_table, write_table
from grpo_pipeline.tasks.stored_examples import Stored

META = "meta.json"


class ExamplesFolder:
    """The folder of a data set in progress: NPY files that grow chunk by chunk.

    Rows are appended in order; ``finish`` puts the folder in place of the old one, ``abandon`` leaves nothing of it. The files
    are the bytes that ``numpy.save`` would write. They are appended to, not mapped: a full disk is then an error and not a
    signal that kills the process.

    Args:
        folder: the folder that is replaced.
        tables: of the whole data set; ``table`` has a row for each row of the arrays.
    """

    def __init__(self, folder: Path, tables: Mapping[str, pd.DataFrame]) -> None:
        self.written = 0
        self._tables = tables
        self._files: dict[str, BinaryIO] = {}
        self._stack = ExitStack()
        self._partial = self._stack.enter_context(replacing_folder(folder))

    def append(self, arrays: Mapping[str, np.ndarray], *, start: int) -> None:
        """Write the next rows of every array, beginning with row ``start``.

        Raises:
            DatasetError: if rows are missing before these, or an array holds Python objects.
        """
        if start != self.written:
            raise DatasetError(
                f"rows must be saved in order, got row {start} after {self.written} rows; save every chunk once"
            )
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise DatasetError(
                    f"the array {name} must hold numbers, got type {array.dtype}; nothing is pickled"
                )
            if name not in self._files:
                self._files[name] = self._open(name, array)
            self._files[name].write(np.ascontiguousarray(array).data)
        self.written += len(next(iter(arrays.values()), ()))

    def finish(self, holds: Any, meta: Mapping[str, Any]) -> None:
        """Write tables and meta data and replace the old folder; a missing digest is computed from the mapped arrays."""
        for file in self._files.values():
            file.close()
        for name, table in self._tables.items():
            write_table(self._partial / f"{name}.jsonl", table)
        if "digest" not in meta:
            meta = {
                **meta,
                "digest": holds.digest_of(Stored(self._tables, map_arrays(self._partial), meta)),
            }
        (self._partial / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
        self._stack.close()

    def abandon(self) -> None:
        """Remove the partial folder; the old folder stays."""
        # An exception inside the context makes it remove the partial folder.
        self._stack.__exit__(DatasetError, DatasetError("abandoned"), None)

    def _open(self, name: str, array: np.ndarray) -> BinaryIO:
        file = self._stack.enter_context((self._partial / f"{name}.npy").open("wb"))
        shape = (len(self._tables["table"]), *array.shape[1:])
        header = {
            "descr": np.lib.format.dtype_to_descr(array.dtype),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(file, header)
        return file


def map_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Map the arrays of a folder into memory, read-only."""
    return {
        path.stem: np.load(path, mmap_mode="r", allow_pickle=False)
        for path in sorted(folder.glob("*.npy"))
    }


class ExamplesDataset(AbstractDataset[Any, Any]):
    """Stores the examples of a task in a folder: ``<table>.jsonl``, ``<array>.npy``, and ``meta.json`` with their digest.

    Saved whole or chunk by chunk, the folder is replaced in one step; nothing is pickled. Arrays come back as read-only
    memory maps, so that a data set may be larger than memory.

    Args:
        filepath: the folder.
        holds: ``module:class`` of the examples; its ``stored`` and ``restored`` say what is kept (``Stored``).
        metadata: for Kedro-Viz.
    """

    def __init__(
        self, *, filepath: str, holds: str, metadata: dict[str, Any] | None = None
    ) -> None:
        self._folder = Path(os.path.abspath(filepath))
        self._holds = holds
        self.metadata = metadata
        self._open: ExamplesFolder | None = None

    def load(self) -> Any:
        """Read the tables and map the arrays.

        Raises:
            DatasetError: if the folder is missing, its parts do not belong together, or are not what was saved.
        """
        folder = find_complete(self._folder)
        if folder is None:
            raise DatasetError(
                f"{self._folder} must hold the model input, got nothing there; run the data pipeline of the task first"
            )
        tables = {path.stem: read_table(path) for path in sorted(folder.glob("*.jsonl"))}
        if "table" not in tables:
            raise DatasetError(
                f"{folder} must hold table.jsonl, got the files of another version; run the data pipeline of the task again"
            )
        arrays, meta = map_arrays(folder), json.loads((folder / META).read_text(encoding="utf-8"))
        lengths = {"table": len(tables["table"])} | {
            name: len(array) for name, array in arrays.items()
        }
        if len(set(lengths.values())) > 1:
            raise DatasetError(
                f"{folder} must hold as many rows in every part, got {lengths}; run the data pipeline of the task again"
            )
        try:
            return resolve_name(self._holds).restored(Stored(tables, arrays, meta))
        except ValueError as error:
            raise DatasetError(
                f"{folder} must hold what was saved, got {error}; run the data pipeline of the task again"
            ) from error

    def save(self, data: Any) -> None:
        """Write a whole data set, or add a chunk to the folder in progress; the last chunk puts the folder in place.

        Raises:
            DatasetError: if chunks do not follow each other.
        """
        stored: Stored = data.stored()
        if stored.start == 0:
            self._discard()
            self._open = ExamplesFolder(self._folder, stored.tables)
        if self._open is None:
            raise DatasetError(
                f"chunks for {self._folder} must start with row 0, got row {stored.start}; save them in order"
            )
        try:
            self._open.append(
                {name: np.asanyarray(array) for name, array in stored.arrays.items()},
                start=stored.start,
            )
            if stored.is_last:
                self._open.finish(resolve_name(self._holds), stored.meta)
                self._open = None
        except BaseException:
            self._discard()
            raise

    def preview(self, nrows: int = 20) -> TablePreview:
        """Show the first rows of the table in Kedro-Viz."""
        return TablePreview(self.load().table.head(nrows).to_dict(orient="split"))

    def _release(self) -> None:
        """Remove a folder that was not completed."""
        self._discard()

    def _discard(self) -> None:
        if self._open is not None:
            abandoned, self._open = self._open, None
            abandoned.abandon()

    def _exists(self) -> bool:
        return find_complete(self._folder) is not None

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._folder), "holds": self._holds}
