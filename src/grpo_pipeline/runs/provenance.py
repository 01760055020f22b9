"""Check that the artefacts that a run loads fit together: its own, and those of an earlier run on the same data.

Until a run has succeeded, its files wait in ``<data>/.runs/<folder>.staged``. Then they are put in place together and recorded
(``artefact_records.py``). Versions that a failed run has written lie beside the earlier ones, but in no record.
"""

import logging
import shutil
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from kedro.io import DataCatalog
from kedro.pipeline import Pipeline

from grpo_pipeline.core.storage.content_digest import content_digest
from grpo_pipeline.core.storage.replacement import put_in_place, remove_partials
from grpo_pipeline.runs.artefact_records import (
    PARAMETER,
    Entry,
    ProvenanceError,
    Record,
    finish_moves,
    load_record,
    refuse_mixture,
    save_record,
)
from grpo_pipeline.runs.result_folders import ResultFolder, folder_of, saved_names
from grpo_pipeline.runs.sources import closure, parameter_digest, sources_of
from grpo_pipeline.runs.stored_datasets import (
    content_path,
    is_in_place,
    is_keyed,
    is_versioned,
    moved,
    pin,
    place_of,
)

logger = logging.getLogger(__name__)
Datasets = dict[str, Any]


class Provenance:
    """The records of a run: the artefacts that it reads, makes and leaves.

    Args:
        run: identity of the run.
        since: time of its start, for people.
        data: the folder with all layers.
        pipeline: the pipeline to run.
        catalog: its datasets; datasets that wait for the end of the run are replaced in it.
    """

    def __init__(
        self, *, run: str, since: str, data: Path, pipeline: Pipeline, catalog: DataCatalog
    ) -> None:
        self._run, self._since, self._data = run, since, data
        self._pipeline, self._catalog = pipeline, catalog
        names = [
            name
            for name in pipeline.datasets()
            if not name.startswith(PARAMETER) and name in catalog
        ]
        stored = {name: catalog.get(name) for name in names}
        self._stored: Datasets = {
            name: dataset for name, dataset in stored.items() if place_of(dataset) is not None
        }
        self._noted: Datasets = {
            name: dataset for name, dataset in self._stored.items() if not is_keyed(dataset)
        }
        self._outputs = saved_names(pipeline) & self._stored.keys()
        self._result_folders = {
            name: results
            for name, dataset in self._stored.items()
            if (results := folder_of(dataset, data)) is not None
        }
        self._records: dict[str, Record] = {}
        self._places: Datasets = {}  # the datasets that were replaced in the catalogue
        self._trusted: dict[str, Entry] = {}  # what the run reads of earlier runs
        self._made: dict[str, str] = {}  # name -> digest; empty until it is asked for
        self._seen: dict[Path, str] = {}
        self._guard = threading.RLock()

    def begin(self, *, chosen: Collection[str], stages: bool) -> None:
        """Check the inputs, choose versions, and redirect new files to wait; the earlier result stays unchanged.

        Args:
            chosen: names of datasets whose version the user has given.
            stages: whether files wait for the end of the run.

        Raises:
            ProvenanceError: if the inputs were not made together.
        """
        for results in self._owned():
            finish_moves(results.record)
            shutil.rmtree(results.staged, ignore_errors=True)
        for name in self._outputs & self._result_folders.keys():
            if (place := place_of(self._stored[name])) is not None:
                remove_partials(place)
        for results in self._result_folders.values():
            if (
                results.name not in self._records
                and (record := load_record(results.record)) is not None
            ):
                self._records[results.name] = record
        noted = {name: entry for name in self._noted if (entry := self._entry(name)) is not None}
        free = self._pipeline.inputs() & self._noted.keys() - set(chosen)
        self._judge_unknown(sorted(free - noted.keys()))
        self._trusted = {name: noted[name] for name in sorted(free & noted.keys())}
        refuse_mixture(self._trusted)
        for name, entry in noted.items():
            if is_versioned(self._noted[name]) and entry.version and name not in chosen:
                pin(self._noted[name], load=entry.version)
        for name, entry in self._trusted.items():  # before the first node leaves anything behind
            path = content_path(self._noted[name])
            if path.exists():
                self._refuse_other(
                    name, path, content_digest(path), entry.digest, _recorded(entry), None
                )
        if stages:
            self._stage()

    def saving(self, name: str, data: Any) -> None:
        """Record that an artefact is about to change; a run loads the version that it saves itself."""
        if name not in self._outputs or name not in self._noted or _is_nothing(data):
            return
        with self._guard:
            dataset = self._noted[name]
            if is_versioned(dataset):
                dataset.release()
                pin(dataset, load=dataset.resolve_save_version())
            elif is_in_place(dataset) and name not in self._made:
                self._write([name], {name: Entry(self._run, self._since)}, moves=())
            self._made[name] = ""
            extra = getattr(data, "extra", None)
            if isinstance(extra, dict):
                extra["run"] = self._run

    def saved(self, name: str, data: Any) -> None:
        """Record the digest of a saved artefact; a folder without a header is read on request."""
        if name in self._made and not _is_nothing(data):
            path = content_path(self._dataset(name))
            if path.is_file() or (path.is_dir() and any(path.glob("*.json"))):
                self._made[name] = content_digest(path)

    def loaded(self, name: str, data: Any) -> None:
        """Compare a loaded artefact with its record.

        Raises:
            ProvenanceError: if they differ.
        """
        if name not in self._noted:
            return
        path = content_path(self._dataset(name))
        if not path.exists():  # such as a checkpoint that is not there yet
            return
        found = content_digest(path)
        with self._guard:
            if name in self._made:
                expected, who = self._made[name] or found, f"this run {self._run}"
            elif name in self._outputs:  # an arm that was complete already has saved nothing
                expected, who = (
                    self._seen.get(path, found),
                    f"this run {self._run} found when it began",
                )
                self._made[name] = expected
            elif name in self._trusted:
                entry = self._trusted[name]
                expected, who = entry.digest, _recorded(entry)
            else:
                self._seen[path] = found
                return
        self._refuse_other(name, path, found, expected, who, data)

    @staticmethod
    def _refuse_other(
        name: str, path: Path, found: str, expected: str, who: str, data: Any
    ) -> None:
        if found != expected:
            raise ProvenanceError(
                f"{name} must be what {who} saved, got other content{_origin(data)} in {path}; something else has written there: "
                "run what makes it again"
            )

    def commit(self) -> None:
        """Put all files in place and record their origin; the earlier result is valid until then."""
        moves = [
            (str(place), str(target))
            for name, dataset in self._places.items()
            if (place := self._staged_place(name)).exists()
            and (target := place_of(dataset)) is not None
        ]
        for name in self._outputs & self._noted.keys():
            path = self._path(name)
            if not self._made.get(name) and path is not None and path.exists():
                self._made[name] = content_digest(path)
        entries = self._entries()
        result_folders = {
            results.name: [
                name for name in entries if self._result_folders[name].name == results.name
            ]
            for results in self._owned()
        }
        for names in result_folders.values():
            self._write(names, entries, moves=moves)
        for start, end in moves:
            put_in_place(Path(start), Path(end))
        for names in result_folders.values():
            self._write(names, entries, moves=())
        for name, dataset in self._places.items():
            _replace(self._catalog, name, dataset)
        self._places.clear()

    def end(self) -> None:
        """Remove waiting files that were not put in place."""
        for results in self._owned():
            shutil.rmtree(results.staged, ignore_errors=True)

    def _owned(self) -> Iterable[ResultFolder]:
        return {
            self._result_folders[name].name: self._result_folders[name]
            for name in sorted(self._outputs)
            if name in self._result_folders
        }.values()

    def _entry(self, name: str) -> Entry | None:
        record = self._records.get(self._result_folders[name].name)
        return None if record is None else record.entries.get(name)

    def _dataset(self, name: str) -> Any:
        return self._catalog.get(name)

    def _path(self, name: str) -> Path | None:
        dataset = self._dataset(name)
        if is_versioned(dataset) and name not in self._made:
            return None
        return content_path(dataset)

    def _judge_unknown(self, names: Iterable[str]) -> None:
        """Refuse versioned artefacts without a record; if there is no record at all, the newest version counts."""
        older = []
        for name in names:
            record, dataset = self._records.get(self._result_folders[name].name), self._noted[name]
            if record is not None and record.entries and is_versioned(dataset):
                raise ProvenanceError(
                    f"{name} must be what a finished run made, got none written down in {self._result_folders[name].record}; "
                    "run the whole pipeline, or name a version: --load-versions"
                )
            if record is None and is_versioned(dataset) and dataset.exists():
                older.append(name)
        if older:
            logger.warning(
                "No run has written down who made %s: taken as found, the newest of each",
                ", ".join(older),
            )

    def _stage(self) -> None:
        shared = [place_of(dataset) for dataset in self._stored.values()]
        for name in sorted(self._outputs):
            dataset, place = self._stored[name], place_of(self._stored[name])
            if (
                is_in_place(dataset)
                or place is None
                or not place.is_relative_to(self._data)
                or shared.count(place) > 1
            ):
                continue
            self._places[name] = dataset
            _replace(self._catalog, name, moved(dataset, self._staged_place(name)))

    def _staged_place(self, name: str) -> Path:
        place = place_of(self._stored[name])
        if place is None:
            raise ValueError(
                f"{name} must be stored, got a dataset in memory; leave it where it is"
            )
        return self._result_folders[name].staged / place.relative_to(self._data)

    def _entries(self) -> dict[str, Entry]:
        """Build an entry for each artefact that the run has made, sources first."""
        nearest = sources_of(self._pipeline, stored=self._noted.keys())
        digests = {name: entry.digest for name, entry in self._trusted.items()} | {
            n: d for n, d in self._made.items() if d
        }
        named = {name for names in nearest.values() for name in names if name.startswith(PARAMETER)}
        digests |= {name: parameter_digest(self._catalog.load(name)) for name in named}
        closures: dict[str, Mapping[str, str]] = {
            name: entry.sources for name, entry in self._trusted.items()
        }
        entries = {}
        for node in self._pipeline.nodes:
            for name in node.outputs:
                if self._made.get(name):
                    closures[name] = closure(nearest[name], digests, closures)
                    version = (
                        self._noted[name].resolve_save_version()
                        if is_versioned(self._noted[name])
                        else ""
                    )
                    entries[name] = Entry(
                        self._run, self._since, digests[name], version, closures[name]
                    )
        return entries

    def _write(
        self,
        names: Iterable[str],
        entries: Mapping[str, Entry],
        *,
        moves: Collection[tuple[str, str]],
    ) -> None:
        """Write entries of these artefacts, which lie in the same folder of results."""
        chosen = {name: entries[name] for name in names}
        if not chosen:
            return
        results = self._result_folders[next(iter(chosen))]
        before = self._records.get(results.name, Record())
        self._records[results.name] = Record({**before.entries, **chosen}, tuple(moves))
        save_record(results.record, self._records[results.name])


def _is_nothing(data: Any) -> bool:
    """Check whether a save writes nothing: no checkpoint at this yield, no rows."""
    return data is False or (isinstance(data, list) and not data)


def _recorded(entry: Entry) -> str:
    return f"run {entry.run} (since {entry.since})"


def _origin(data: Any) -> str:
    """Describe the origin of a checkpoint by its content."""
    run, progress = (
        (getattr(data, "extra", None) or {}).get("run"),
        getattr(data, "progress", None) or {},
    )
    return f" (of run {run}, step {progress.get('step', '?')})" if run else ""


def _replace(catalog: DataCatalog, name: str, dataset: Any) -> None:
    """Replace a dataset under a name, without Kedro's warning."""
    quiet = logging.getLogger("kedro.io.data_catalog")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        catalog[name] = dataset
    finally:
        quiet.setLevel(level)
