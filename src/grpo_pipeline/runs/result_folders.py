"""Find the folders of results that a pipeline writes, which a run owns as a whole."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kedro.io import DataCatalog
from kedro.pipeline import Pipeline

from grpo_pipeline.runs.stored_datasets import place_of

# Tag of a node that saves nothing under a second name of a dataset, so that the stored content is loaded by that name.
LOOKS_UP = "looks_up"

RUNS = ".runs"  # below the data folder: what runs note about their results

OWNER = "owner"  # key of an entry's metadata, see ``folder_of``


@dataclass(frozen=True)
class ResultFolder:
    """A folder of results, in all layers.

    Attributes:
        name: as in messages and file names.
        folder: of its notes.
    """

    name: str
    folder: Path

    @property
    def lock(self) -> Path:
        """Path of the file that a run locks while it writes here."""
        return self.folder / f"{self.name}.lock"

    @property
    def record(self) -> Path:
        """Path of the record of the artefacts in this folder."""
        return self.folder / f"{self.name}.json"

    @property
    def seconds(self) -> Path:
        """Path of the file with the duration of each node, for the next run's time left."""
        return self.folder / f"{self.name}.seconds"

    @property
    def staged(self) -> Path:
        """Path of the folder in which files wait for the end of a run."""
        return self.folder / f"{self.name}.staged"


def saved_names(pipeline: Pipeline) -> set[str]:
    """Return the names under which a pipeline saves anything."""
    return {name for node in pipeline.nodes if LOOKS_UP not in node.tags for name in node.outputs}


def written_folders(pipeline: Pipeline, catalog: DataCatalog, data: Path) -> list[ResultFolder]:
    """List the folders in which a pipeline saves, sorted by name, so that two runs lock them in the same order."""
    found = {
        results.name: results
        for name in saved_names(pipeline)
        if (results := folder_of(catalog.get(name), data)) is not None
    }
    return [found[name] for name in sorted(found)]


def folder_of(dataset: Any, data: Path) -> ResultFolder | None:
    """Find the folder of a dataset below the layers, ``<data>/<layer>/<folder>/…``; None if it is not stored.

    An entry whose metadata name an ``owner`` has its own, ``<folder>.<owner>``. It may be written while another run works in the
    rest of the folder.
    """
    path = place_of(dataset)
    if path is None:
        return None
    if not path.is_relative_to(data) or len(path.relative_to(data).parts) < 3:
        return ResultFolder(
            f"outside-{hashlib.sha256(str(path.parent).encode()).hexdigest()[:12]}", data / RUNS
        )
    folder, owner = (
        path.relative_to(data).parts[1],
        (getattr(dataset, "metadata", None) or {}).get(OWNER),
    )
    return ResultFolder(f"{folder}.{owner}" if owner else folder, data / RUNS)


def remedies(results: ResultFolder, globals_: Mapping[str, Any]) -> Iterator[str]:
    """Yield the command-line parameters that give a run another folder than this one."""
    folder = results.name.partition(".")[0]
    keys = [key for key, value in globals_.items() if value == folder]
    yield from (f"--params {key}={folder}_2" for key in keys)
    if not keys:
        yield "--params data=<another folder>"
