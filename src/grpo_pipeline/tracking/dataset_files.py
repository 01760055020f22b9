"""Find the files of catalogue entries."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Check whether a catalogue name matches any of the shell patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def dataset_path(dataset: Any) -> Path | None:
    """Find the local file or folder of a dataset (in this run's version); None if it has none.

    Reads the attributes in which Kedro's file datasets store their place.
    """
    inner = getattr(dataset, "_dataset", dataset)  # of a CachedDataset
    if getattr(inner, "_version", None):
        where = inner._get_versioned_path(inner.resolve_save_version())
    else:
        where = getattr(inner, "_filepath", None) or getattr(inner, "_path", None)
    return None if where is None else Path(str(where))
