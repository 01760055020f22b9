"""Store named arrays in an NPZ file."""

import io
from copy import deepcopy
from pathlib import PurePosixPath
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np
from kedro.io.core import (
    AbstractVersionedDataset,
    DatasetError,
    Version,
    get_filepath_str,
    get_protocol_and_path,
)
from kedro_datasets._typing import TablePreview

Arrays = dict[str, np.ndarray]


class ArraysDataset(AbstractVersionedDataset[Arrays, Arrays]):
    """Stores a mapping of name -> array as a compressed ``.npz`` file, dtype and shape unchanged.

    Nothing is pickled: an array of Python objects is refused on both ways.

    Example:
        ::

            <task>.grpo.showcase:
              type: grpo_pipeline.datasets.arrays.ArraysDataset
              filepath: data/07_model_output/showcase.npz
              versioned: true
    """

    def __init__(
        self,
        *,
        filepath: str,
        version: Version | None = None,
        credentials: dict[str, Any] | None = None,
        fs_args: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Name the file; ``filepath`` may carry an fsspec protocol, ``metadata`` is kept for plugins."""
        protocol, path = get_protocol_and_path(filepath, version)
        options = deepcopy(fs_args) or {}
        if protocol == "file":
            options.setdefault("auto_mkdir", True)
        self._protocol = protocol
        self._fs = fsspec.filesystem(protocol, **(deepcopy(credentials) or {}), **options)
        self.metadata = metadata
        super().__init__(
            PurePosixPath(path),
            version,
            exists_function=self._fs.exists,
            glob_function=self._fs.glob,
        )

    def load(self) -> Arrays:
        """Read every array of the file by name."""
        path = get_filepath_str(self._get_load_path(), self._protocol)
        with self._fs.open(path, mode="rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}

    def save(self, data: Arrays) -> None:
        """Write the arrays; the file appears only if all of them could be encoded.

        Raises:
            DatasetError: if a value is not an array or holds Python objects.
        """
        path = get_filepath_str(self._get_save_path(), self._protocol)
        content = encode(data)
        with self._fs.open(path, mode="wb") as file:
            file.write(content)
        self._invalidate_cache()

    def preview(self) -> TablePreview:
        """Tabulate the arrays' names, shapes and types for Kedro-Viz."""
        rows = [
            [name, " x ".join(map(str, array.shape)), str(array.dtype)]
            for name, array in self.load().items()
        ]
        return TablePreview(
            {"index": list(range(len(rows))), "columns": ["array", "shape", "type"], "data": rows}
        )

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._filepath, "protocol": self._protocol, "version": self._version}

    def _exists(self) -> bool:
        return bool(self._fs.exists(get_filepath_str(self._get_load_path(), self._protocol)))

    def _release(self) -> None:
        super()._release()
        self._invalidate_cache()

    def _invalidate_cache(self) -> None:
        self._fs.invalidate_cache(get_filepath_str(self._filepath, self._protocol))


def encode(arrays: Arrays) -> bytes:
    """Encode arrays as an NPZ file.

    Raises:
        DatasetError: if a value is not an array or holds Python objects.
    """
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            kind = getattr(array, "dtype", type(array).__name__)
            raise DatasetError(
                f"array {name!r} must be a NumPy array of numbers, booleans or strings, got {kind}; convert it"
            )
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()
