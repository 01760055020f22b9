"""Pin versioned datasets to the versions that finished runs have recorded."""

from pathlib import Path
from typing import Any

from kedro.io import DataCatalog

from grpo_pipeline.runs.artefact_records import load_record
from grpo_pipeline.runs.result_folders import RUNS, folder_of
from grpo_pipeline.runs.stored_datasets import is_versioned, pin


def pin_recorded(catalog: DataCatalog, data: Path) -> None:
    """Pin versioned datasets to the recorded versions; outside of a run (notebooks, Kedro-Viz) the newest would load."""
    for path in sorted((data / RUNS).glob("*.json")):
        record = load_record(path)
        for name, entry in record.entries.items() if record is not None else ():
            dataset: Any = catalog.get(name) if entry.version and name in catalog else None
            results = None if dataset is None else folder_of(dataset, data)
            if (
                results is not None
                and results.record == path
                and is_versioned(dataset)
                and dataset._version.load is None
            ):
                pin(dataset, load=entry.version)
