"""Read how a run treats a stored dataset: where it lies, whether it is put in place at the end, whether it checks itself.

A dataset class may say two things of itself:

- ``in_place = True``: it is written where it lies while the run goes on, and is kept when the run fails, such as a checkpoint.
- ``is_keyed = True``: it holds under which key its content was made, and who reads it compares, such as features of a frozen
  encoder or the trials of a grid; or it is the user's, such as a data root. Nothing is written down of it.
"""

from pathlib import Path
from typing import Any

from kedro.io.core import AbstractDataset, AbstractVersionedDataset, Version


def place_of(dataset: Any) -> Path | None:
    """Return the file or folder of a dataset's entry in the catalogue, without a version; None for what is in memory."""
    given = arguments(dataset).get("filepath")
    return None if given is None or "://" in str(given) else Path(str(given)).absolute()


def arguments(dataset: Any) -> dict[str, Any]:
    """Return the keyword arguments that a dataset was built with.

    Kedro keeps them; of a class that inherits its ``__init__`` one level deeper, under ``kwargs``.
    """
    given = dict(getattr(dataset, "_init_args", {}))
    while "filepath" not in given and isinstance(given.get("kwargs"), dict):
        given = dict(given["kwargs"])
    return given


def is_versioned(dataset: Any) -> bool:
    """Say whether each save of a dataset gets a folder of its own."""
    return isinstance(dataset, AbstractVersionedDataset) and bool(dataset._version)


def is_in_place(dataset: Any) -> bool:
    """Say whether a dataset is written where it lies, while the run goes on."""
    return is_versioned(dataset) or bool(getattr(dataset, "in_place", False)) or is_keyed(dataset)


def is_keyed(dataset: Any) -> bool:
    """Say whether a dataset needs no note of who made it."""
    return bool(getattr(dataset, "is_keyed", False))


def content_path(dataset: Any) -> Path:
    """Return where the content is: of a versioned dataset, in the version that it loads."""
    if is_versioned(dataset):
        return Path(str(dataset._get_load_path()))
    place = place_of(dataset)
    if place is None:
        raise ValueError(f"a stored dataset must have a filepath, got {dataset}; give it one")
    return place


def pin(dataset: Any, *, load: str) -> None:
    """Let a versioned dataset load one version and no other, whatever lies beside it."""
    dataset.release()
    dataset._version = Version(load, dataset.resolve_save_version())


def moved(dataset: AbstractDataset[Any, Any], place: Path) -> AbstractDataset[Any, Any]:
    """Return the same dataset with another file."""
    return type(dataset)(**{**arguments(dataset), "filepath": str(place)})
