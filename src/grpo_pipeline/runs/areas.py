"""Find the folders of results that a pipeline writes; a run owns each of them as a whole."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kedro.io import DataCatalog
from kedro.io.core import AbstractDataset, AbstractVersionedDataset, Version
from kedro.pipeline import Pipeline

# How a run treats the datasets that are stored: where they lie, which are put in place at its end, which check themselves.
#
# A dataset class may say two things of itself:
#
# - ``in_place = True``: it is written where it lies while the run goes on, and is kept when the run fails, such as a checkpoint.
# - ``is_keyed = True``: it holds under which key its content was made, and who reads it compares, such as features of a frozen
#   encoder or the trials of a grid; or it is the user's, such as a data root. Nothing is written down of it.


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


RUNS = ".runs"  # below the data folder: what runs note about their results
OWNER = "owner"  # key of an entry's metadata, see ``area_of``


@dataclass(frozen=True)
class Area:
    """One folder of results, in all layers.

    Attributes:
        name: as in messages and file names.
        folder: of its notes.
    """

    name: str
    folder: Path

    @property
    def lock(self) -> Path:
        """The file that a run locks while it writes here."""
        return self.folder / f"{self.name}.lock"

    @property
    def record(self) -> Path:
        """The file in which runs write down what they made here."""
        return self.folder / f"{self.name}.json"

    @property
    def staged(self) -> Path:
        """The folder in which files wait for the end of a run."""
        return self.folder / f"{self.name}.staged"


def written_areas(pipeline: Pipeline, catalog: DataCatalog, data: Path) -> list[Area]:
    """Return the areas in which a pipeline saves anything, sorted by name, so that two runs ask for them in one order."""
    found = {
        area.name: area
        for name in pipeline.all_outputs()
        if (area := area_of(catalog.get(name), data)) is not None
    }
    return [found[name] for name in sorted(found)]


def area_of(dataset: Any, data: Path) -> Area | None:
    """Return where a dataset belongs: the folder below the layers, ``<data>/<layer>/<folder>/…``; None if it is not stored.

    An entry whose metadata name an ``owner`` has an area of its own, ``<folder>.<owner>``: what may be written while another
    run works in the rest of the folder.
    """
    path = place_of(dataset)
    if path is None:
        return None
    if not path.is_relative_to(data) or len(path.relative_to(data).parts) < 3:
        return Area(
            f"outside-{hashlib.sha256(str(path.parent).encode()).hexdigest()[:12]}", data / RUNS
        )
    folder, owner = (
        path.relative_to(data).parts[1],
        (getattr(dataset, "metadata", None) or {}).get(OWNER),
    )
    return Area(f"{folder}.{owner}" if owner else folder, data / RUNS)


def remedies(area: Area, globals_: Mapping[str, Any]) -> Iterator[str]:
    """Yield the command-line parameters that give a run another folder than this one."""
    folder = area.name.partition(".")[0]
    keys = [key for key, value in globals_.items() if value == folder]
    yield from (f"--params {key}={folder}_2" for key in keys)
    if not keys:
        yield "--params data=<another folder>"
