"""Check the common properties of files of all formats: library, shape, spacings and windows."""

import importlib
import math
import zlib
from typing import Any

import numpy as np

from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError, describe

MAX_VOXELS = 1_000_000_000

DAMAGE = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    OSError,
    EOFError,
    zlib.error,
)
"""What the libraries raise for damaged files beside their own errors."""


def library(name: str, relpath: str) -> Any:
    """Import the library of a format.

    Raises:
        ModuleNotFoundError: if it is not installed: a row is not bad because of that, so it is no ``UnreadableFileError``.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"reading {relpath!r} needs {name}; install the extra: pip install '.[formats]'"
        ) from error


def damaged(relpath: str, kind: str, error: BaseException | str) -> UnreadableFileError:
    """Build the error of a file that its library cannot read."""
    got = error if isinstance(error, str) else describe(error)
    return UnreadableFileError(
        f"{relpath!r} must be a complete {kind} file, got {got}; copy it again"
    )


def check_shape(shape: tuple[int, ...], relpath: str) -> None:
    """Refuse arrays that are neither a plane nor a stack of planes, or have too many voxels for memory."""
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise UnreadableFileError(
            f"{relpath!r} must be one plane or one volume, got shape {shape}; save one volume per file"
        )
    if math.prod(shape) > MAX_VOXELS:
        raise UnreadableFileError(
            f"{relpath!r} must have at most {MAX_VOXELS} voxels, got shape {shape}; crop it"
        )


def millimetres(value: Any) -> float | None:
    """Read a spacing in millimetres; None for an impossible value."""
    spacing = abs(float(value))
    return spacing if math.isfinite(spacing) and spacing > 0 else None


def is_narrow(low: float, high: float, values: np.ndarray) -> bool:
    """Check whether a window covers less than half of the range of the values; a window without width counts as none."""
    return 0 < high - low < (float(np.max(values)) - float(np.min(values))) / 2
