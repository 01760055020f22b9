"""The folder of a data set's arrays while it is being written: NPY files that grow chunk by chunk."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pandas as pd
from kedro.io import DatasetError

from grpo_pipeline.core.atomic import replacing_folder
from grpo_pipeline.datasets.table import escaped
from grpo_pipeline.tasks.attention.examples import ARRAYS

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
