"""Find the folders of results that a pipeline writes, which a run owns as a whole, and write down who made what in them.

One JSON file per folder, replaced in one step, says which run made each artefact, from what, and which version of it counts.
"The last result" is what the last successful run wrote down there, whatever the clock said: no name of a version is compared
with another.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from kedro.io import DataCatalog
from kedro.io.core import AbstractDataset, AbstractVersionedDataset, Version
from kedro.pipeline import Pipeline

from grpo_pipeline.core.storage.replacement import put_in_place, replace_file

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


# Tag of a node that saves nothing under a second name of a dataset, so that what lies there already is loaded by that name.
LOOKS_UP = "looks_up"
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


def saved_names(pipeline: Pipeline) -> set[str]:
    """Return the names under which a pipeline saves anything."""
    return {name for node in pipeline.nodes if LOOKS_UP not in node.tags for name in node.outputs}


def written_areas(pipeline: Pipeline, catalog: DataCatalog, data: Path) -> list[Area]:
    """Return the areas in which a pipeline saves anything, sorted by name, so that two runs ask for them in one order."""
    found = {
        area.name: area
        for name in saved_names(pipeline)
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


FORMAT = 1
PARAMETER = "params:"


class ProvenanceError(ValueError):
    """Raised when a run reads something else than the run that it names has made."""


@dataclass(frozen=True)
class Entry:
    """One artefact.

    Attributes:
        run: identity of the run that made it.
        since: when that run began, for people.
        digest: of its content; empty as long as the run is writing it.
        version: of a versioned entry of the catalogue.
        sources: name -> digest of all that it was made from, and of what that was made from: artefacts and parameters.
    """

    run: str
    since: str
    digest: str = ""
    version: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """The artefacts of one folder by their names in the catalogue.

    Attributes:
        entries: name -> artefact.
        moves: files that are complete and being put in place, as pairs from, to; empty except while that happens.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    moves: Sequence[tuple[str, str]] = ()


def load_record(path: Path) -> Record | None:
    """Read a record; None where no run has written one.

    Raises:
        ProvenanceError: if the file is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries = {name: Entry(**entry) for name, entry in content["entries"].items()}
        return Record(entries, tuple((start, end) for start, end in content["moves"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProvenanceError(
            f"{path} must be what runs wrote down of their results, got {type(error).__name__}: {error}; remove it and run again"
        ) from error


def save_record(path: Path, record: Record) -> None:
    """Write a record in one step."""
    content = {
        "format": FORMAT,
        "moves": record.moves,
        "entries": {name: asdict(entry) for name, entry in record.entries.items()},
    }
    replace_file(path, json.dumps(content, indent=0).encode())


def finish_moves(path: Path) -> None:
    """Put in place what a run had completed when it was killed."""
    record = load_record(path)
    if record is None or not record.moves:
        return
    for start, end in record.moves:
        if Path(start).exists():
            put_in_place(Path(start), Path(end))
    save_record(path, replace(record, moves=()))


def refuse_mixture(entries: Mapping[str, Entry]) -> None:
    """Check that artefacts that are read together were made from the same things.

    Raises:
        ProvenanceError: naming the two artefacts, their runs and what differs; or an artefact that a run has left unfinished.
    """
    for name, entry in entries.items():
        if not entry.digest:
            raise ProvenanceError(
                f"{name} must be what a finished run made, got what {_run(entry)} left unfinished; go on with --params "
                "resume=auto or run the whole pipeline again"
            )
    known = {name: {**entry.sources, name: entry.digest} for name, entry in entries.items()}
    for first, second in combinations(entries, 2):
        one, other = known[first], known[second]
        if differing := sorted(
            name for name in one.keys() & other.keys() if one[name] != other[name]
        ):
            raise ProvenanceError(
                f"{first} and {second} must be made from the same {_short(differing)}, got {first} by {_run(entries[first])} and "
                f"{second} by {_run(entries[second])}; run what makes them once more, together"
            )


def _short(names: Sequence[str]) -> str:
    """Return the first causes: parameters rather than what follows from them."""
    parameters = [name for name in names if name.startswith(PARAMETER)]
    few = (parameters or names)[:3]
    return ", ".join(few) + (" …" if len(parameters or names) > len(few) else "")


def _run(entry: Entry) -> str:
    return f"run {entry.run} (since {entry.since})"
