"""Write one array as a safetensors file in pieces and read it as a memory map; the library itself does neither.

Format: the length of the header (8 bytes, little-endian), the header (JSON, padded with blanks to a multiple of 8 bytes), the
values (https://github.com/huggingface/safetensors, "Format").
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from kedro.io.core import DatasetError
from safetensors import safe_open

NAME = "features"


class FeatureFile:
    """Rows are appended in order to ``<path>.partial``; ``finish`` renames it into place.

    Args:
        path: the file that is replaced.
        key: kept in the header.
        shape: of the whole array, float32; None for a file with a key alone.
    """

    def __init__(self, path: Path, key: str, *, shape: tuple[int, ...] | None) -> None:
        self._path, self._partial = path, path.with_suffix(".partial")
        self._shape, self._written = shape, 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._partial.open("wb")
        self._file.write(header(key, shape))

    def append(self, values: np.ndarray, *, start: int) -> None:
        """Write the next rows, whose first is row ``start``.

        Raises:
            DatasetError: if they do not follow the rows that are there, or differ from them in shape or type.
        """
        if (
            start != self._written
            or self._shape is None
            or values.shape[1:] != self._shape[1:]
            or values.dtype != np.float32
        ):
            got = f"{values.dtype} {values.shape} at row {start}"
            raise DatasetError(
                f"features must go on with float32 rows of {self._shape} at row {self._written}, got {got}; save in order"
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


def header(key: str, shape: tuple[int, ...] | None) -> bytes:
    """Return what stands before the values of a file with one array."""
    described: dict[str, Any] = {"__metadata__": {"key": key}}
    if shape is not None:
        size = int(np.prod(shape)) * np.dtype(np.float32).itemsize
        described[NAME] = {
            "dtype": "F32",
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
    if entry["dtype"] != "F32":  # an older version stored halves, too: they are computed again
        return "", None
    offset = 8 + length + entry["data_offsets"][0]
    return key, np.memmap(
        path, dtype=np.float32, mode="r", offset=offset, shape=tuple(entry["shape"])
    )
