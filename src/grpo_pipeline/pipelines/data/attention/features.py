"""Kedro dataset for the features of a frozen encoder: one safetensors file with its key in the header, mapped into memory."""

import json
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
from kedro.io.core import AbstractDataset, DatasetError
from kedro_datasets._typing import JSONPreview
from safetensors import SafetensorError, safe_open

from grpo_pipeline.tasks.attention.build import FeatureChunk, FeatureSet

# One array as a safetensors file that is written in pieces and read as a memory map; the library itself does neither.
#
# Format: the length of the header (8 bytes, little-endian), the header (JSON, padded with blanks to a multiple of 8 bytes), the
# values (https://github.com/huggingface/safetensors, "Format").

NAME = "features"
TYPES = {"float32": "F32", "float16": "F16"}


class FeatureFile:
    """Rows are appended in order to ``<path>.partial``; ``finish`` renames it into place.

    Args:
        path: the file that is replaced.
        key: kept in the header.
        shape: of the whole array; None for a file with a key alone.
        dtype: of the whole array.
    """

    def __init__(
        self, path: Path, key: str, *, shape: tuple[int, ...] | None, dtype: Any = np.float32
    ) -> None:
        self._path, self._partial = path, path.with_suffix(".partial")
        self._shape, self._dtype, self._written = shape, np.dtype(dtype), 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._partial.open("wb")
        self._file.write(header(key, shape, self._dtype))

    def append(self, values: np.ndarray, *, start: int) -> None:
        """Write the next rows, whose first is row ``start``.

        Raises:
            DatasetError: if they do not follow the rows that are there, or differ from them in shape or type.
        """
        if (
            start != self._written
            or self._shape is None
            or values.shape[1:] != self._shape[1:]
            or values.dtype != self._dtype
        ):
            got = f"{values.dtype} {values.shape} at row {start}"
            raise DatasetError(
                f"features must go on with {self._dtype} rows of {self._shape} at row {self._written}, got {got}; save in order"
            )
        self._file.write(np.ascontiguousarray(values).data)
        self._written += len(values)

    def finish(self) -> None:
        """Put the file in place of the old one."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._partial, self._path)

    def abandon(self) -> None:
        """Give the file up; the old one stays."""
        self._file.close()
        self._partial.unlink(missing_ok=True)


def header(key: str, shape: tuple[int, ...] | None, dtype: np.dtype) -> bytes:
    """Return what stands before the values of a file with one array."""
    described: dict[str, Any] = {"__metadata__": {"key": key}}
    if shape is not None:
        size = int(np.prod(shape)) * dtype.itemsize
        described[NAME] = {
            "dtype": TYPES[dtype.name],
            "shape": list(shape),
            "data_offsets": [0, size],
        }
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def map_features(path: Path) -> tuple[str, np.ndarray | None]:
    """Return the key and the array as a read-only memory map, None where the file holds a key alone.

    Raises:
        safetensors.SafetensorError: if the file is damaged.
    """
    with safe_open(path, framework="numpy") as file:
        key = str((file.metadata() or {}).get("key", ""))
        if NAME not in set(file.keys()):
            return key, None
    with path.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        entry = json.loads(opened.read(length))[NAME]
    dtype = next(name for name, code in TYPES.items() if code == entry["dtype"])
    offset = 8 + length + entry["data_offsets"][0]
    return key, np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=tuple(entry["shape"]))


class FeaturesDataset(AbstractDataset[FeatureSet | FeatureChunk | Literal[False], FeatureSet]):
    """Features keyed by weights and data; loading before the first save gives an empty set.

    Saved whole or chunk by chunk, and loaded as a read-only memory map, so that they may be larger than memory. The same file
    may stand in the catalogue under two names, one to look up and one to write, so that the graph has no cycle.
    """

    is_keyed = True

    def __init__(self, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        """Name the file.

        Args:
            filepath: the safetensors file.
            metadata: free, for Kedro-Viz.
        """
        self._filepath = Path(filepath)
        self.metadata = metadata
        self._open: FeatureFile | None = None

    def load(self) -> FeatureSet:
        """Map the features, or return an empty set; a damaged file raises ``DatasetError``."""
        if not self._filepath.is_file():
            return FeatureSet(key="", values=None)
        try:
            return FeatureSet(*map_features(self._filepath))
        except SafetensorError as error:
            raise DatasetError(
                f"features {self._filepath} must be a safetensors file, got: {error}; remove it"
            ) from error

    def save(self, data: FeatureSet | FeatureChunk | Literal[False]) -> None:
        """Write the features, or add a chunk of them; the last one replaces the old file in one step.

        A set that the file already holds is not written again: its values are the map of that file. ``False`` writes nothing.

        Raises:
            DatasetError: if chunks do not follow each other.
        """
        if data is False:
            return
        start = 0 if isinstance(data, FeatureSet) else data.start
        if isinstance(data, FeatureSet) and data.key and self._holds(data.key):
            return
        if start == 0:
            self._discard()
            self._open = self._begin(data)
        if self._open is None:
            raise DatasetError(
                f"chunks for {self._filepath} must start with row 0, got row {start}; save them in order"
            )
        try:
            if data.values is not None:
                self._open.append(data.values, start=start)
            if isinstance(data, FeatureSet) or data.is_last:
                self._open.finish()
                self._open = None
        except BaseException:
            self._discard()
            raise

    def _begin(self, data: FeatureSet | FeatureChunk) -> FeatureFile:
        if data.values is None:
            return FeatureFile(self._filepath, data.key, shape=None)
        total = len(data.values) if isinstance(data, FeatureSet) else data.total
        return FeatureFile(
            self._filepath, data.key, shape=(total, *data.values.shape[1:]), dtype=data.values.dtype
        )

    def _holds(self, key: str) -> bool:
        try:
            return self.load().key == key
        except DatasetError:
            return False

    def _release(self) -> None:
        """Give up a file that was not completed; nothing of it stays."""
        self._discard()

    def _discard(self) -> None:
        if self._open is not None:
            abandoned, self._open = self._open, None
            abandoned.abandon()

    def preview(self) -> JSONPreview:
        """Show the key and the shape."""
        found = self.load()
        shape = None if found.values is None else list(found.values.shape)
        return JSONPreview(json.dumps({"key": found.key, "shape": shape}))

    def _exists(self) -> bool:
        return self._filepath.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}
