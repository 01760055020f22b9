"""Read how a run treats a stored dataset: its place, whether it is put in place at the end, whether it has a key.

A dataset class may set two attributes:

- ``in_place = True``: it is written in its place during the run, and is kept if the run fails, such as a checkpoint.
- ``is_keyed = True``: its content holds the key under which it was made, and readers compare that, such as features of a frozen
  encoder or the trials of a grid. Or it is the user's, such as a data root. The run records nothing about it.
"""

from pathlib import Path
from typing import Any

from kedro.io.core import AbstractDataset, AbstractVersionedDataset, Version


def place_of(dataset: Any) -> Path | None:
    """Find the file or folder of a dataset's entry in the catalogue, without a version; None for a dataset in memory."""
    given = arguments(dataset).get("filepath")
    return None if given is None or "://" in str(given) else Path(str(given)).absolute()


def arguments(dataset: Any) -> dict[str, Any]:
    """Read the keyword arguments that a dataset was built with.

    Kedro keeps them; of a class that inherits its ``__init__`` one level deeper, under ``kwargs``.
    """
    given = dict(getattr(dataset, "_init_args", {}))
    while "filepath" not in given and isinstance(given.get("kwargs"), dict):
        given = dict(given["kwargs"])
    return given


def is_versioned(dataset: Any) -> bool:
    """Check whether each save of a dataset gets a folder of its own."""
    return isinstance(dataset, AbstractVersionedDataset) and bool(dataset._version)


def is_in_place(dataset: Any) -> bool:
    """Check whether a dataset is written in its place during the run."""
    return is_versioned(dataset) or bool(getattr(dataset, "in_place", False)) or is_keyed(dataset)


def is_keyed(dataset: Any) -> bool:
    """Check whether a dataset has a key of its content, and so needs no record of its origin."""
    return bool(getattr(dataset, "is_keyed", False))


def content_path(dataset: Any) -> Path:
    """Find the content of a dataset: for a versioned one, that of the version that it loads."""
    if is_versioned(dataset):
        return Path(str(dataset._get_load_path()))
    place = place_of(dataset)
    if place is None:
        raise ValueError(f"a stored dataset must have a filepath, got {dataset}; give it one")
    return place


def pin(dataset: Any, *, load: str) -> None:
    """Pin a versioned dataset to a version."""
    dataset.release()
    dataset._version = Version(load, dataset.resolve_save_version())


def moved(dataset: AbstractDataset[Any, Any], place: Path) -> AbstractDataset[Any, Any]:
    """Build the same dataset with another file."""
    return type(dataset)(**{**arguments(dataset), "filepath": str(place)})
