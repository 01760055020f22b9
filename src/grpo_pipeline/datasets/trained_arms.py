"""Read all trained models of a task as a single dataset."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from kedro.io.core import AbstractDataset, DatasetError
from kedro_datasets._typing import JSONPreview

from grpo_pipeline.runs.artefact_records import load_record
from grpo_pipeline.runs.result_folders import RUNS, ResultFolder
from grpo_pipeline.tasks.trained_arms import KINDS, LastModel, TrainedArms, model_name, version_of


class TrainedArmsDataset(AbstractDataset[Any, TrainedArms]):
    """Finds the model of each arm's last finished run below a folder, so that a parameter can choose among them; read only.

    Args:
        filepath: the folder of the task, ``<data>/06_models/<folder>``; Kedro makes a relative path relative to the project.
        metadata: for Kedro-Viz.
    """

    is_keyed = True

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._filepath = Path(os.path.abspath(filepath))
        self.metadata = metadata
        self._found: TrainedArms | None = None
        self._fetched: dict[str, Path] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def load(self) -> TrainedArms:
        """Find the models once, so that all nodes of a run see the same; their weights are not read yet."""
        if self._found is None:
            self._found = replace(recorded_arms(self._filepath), fetch=self._fetch)
        return self._found

    def save(self, data: Any) -> None:
        """Refuse: each arm writes its own model."""
        raise DatasetError(
            f"{self._filepath} must be written by the arms, got {type(data).__name__}; save <task>.<arm>.model"
        )

    def _fetch(self, address: str) -> Path:
        """Download a registered model, once; it is removed with the dataset."""
        if address not in self._fetched:
            from grpo_pipeline.tracking.registry import fetch  # imports MLflow

            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="grpo-registered-")
            self._fetched[address] = fetch(address, Path(self._folder.name))
        return self._fetched[address]

    def preview(self) -> JSONPreview:
        """Show the version of each arm's newest model."""
        return JSONPreview(
            json.dumps({arm: version_of(path) for arm, path in self.load().newest().items()})
        )

    def _exists(self) -> bool:
        return bool(self.load().newest())

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}


def recorded_arms(folder: Path) -> TrainedArms:
    """Find the models of a task's folder by the records of their runs."""
    record = load_record(ResultFolder(folder.name, folder.parents[1] / RUNS).record)
    if record is None:
        return TrainedArms(folder)
    made = {
        (parts[1], parts[2]): LastModel(entry.version, entry.digest, entry.run)
        for name, entry in record.entries.items()
        if len(parts := name.split(".")) == 3 and parts[2] in KINDS
        if entry.version and entry.digest
    }
    # The best weights must come from the run of the last ones: a later run may have kept none.
    last = {arm: model.run for (arm, kind), model in made.items() if kind == KINDS[0]}
    return TrainedArms(
        folder,
        {
            model_name(arm, kind): model
            for (arm, kind), model in made.items()
            if model.run == last.get(arm)
        },
    )
