"""Record the origin of the artefacts in a folder of results, and read the record.

A JSON file per folder, replaced atomically, states for each artefact its run, its sources and its valid version. "The last
result" is that of the last successful run in this record. Names of versions and times are not compared.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path

from grpo_pipeline.core.storage.replacement import put_in_place, replace_file

FORMAT = 1

PARAMETER = "params:"


class ProvenanceError(ValueError):
    """An artefact differs from the record of the run that made it."""


@dataclass(frozen=True)
class Entry:
    """An artefact.

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
    """The artefacts of a folder by their names in the catalogue.

    Attributes:
        entries: name -> artefact.
        moves: complete files that are being put in place, as pairs (from, to); empty at all other times.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    moves: Sequence[tuple[str, str]] = ()


def load_record(path: Path) -> Record | None:
    """Read a record; None if no run has written one.

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
    """Write a record atomically."""
    content = {
        "format": FORMAT,
        "moves": record.moves,
        "entries": {name: asdict(entry) for name, entry in record.entries.items()},
    }
    replace_file(path, json.dumps(content, indent=0).encode())


def finish_moves(path: Path) -> None:
    """Finish putting files in place that a killed run had completed."""
    record = load_record(path)
    if record is None or not record.moves:
        return
    for start, end in record.moves:
        if Path(start).exists():
            put_in_place(Path(start), Path(end))
    save_record(path, replace(record, moves=()))


def refuse_mixture(entries: Mapping[str, Entry]) -> None:
    """Check that artefacts that are read together were made from the same sources.

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
    """Write the first causes: parameters before their consequences."""
    parameters = [name for name in names if name.startswith(PARAMETER)]
    few = (parameters or names)[:3]
    return ", ".join(few) + (" …" if len(parameters or names) > len(few) else "")


def _run(entry: Entry) -> str:
    return f"run {entry.run} (since {entry.since})"
