"""The dataset of all trained models of a task."""

import json
import os
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset, DatasetError
from kedro_datasets._typing import JSONPreview

from grpo_pipeline.runs.areas import RUNS, Area
from grpo_pipeline.runs.record import load_record
from grpo_pipeline.tasks.trained import LastModel, TrainedArms, version_of

MODEL = "model"


class TrainedArmsDataset(AbstractDataset[Any, TrainedArms]):
    """Know the model of each arm's last finished run below a folder, so that a parameter can choose among them; read only.

    Args:
        filepath: the folder of the task, ``<data>/06_models/<folder>``; Kedro makes a relative path relative to the project.
        metadata: for Kedro-Viz.
    """

    is_keyed = True

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._filepath = Path(os.path.abspath(filepath))
        self.metadata = metadata
        self._found: TrainedArms | None = None

    def load(self) -> TrainedArms:
        """Return the models as they are at the first call, so that all nodes of a run see one; none of them is read yet."""
        self._found = self._found or recorded_arms(self._filepath)
        return self._found

    def save(self, data: Any) -> None:
        """Refuse: each arm writes its own model."""
        raise DatasetError(f"{self._filepath} must be written by the arms, got {type(data).__name__}; save attention.<arm>.model")

    def preview(self) -> JSONPreview:
        """Show the version of each arm's newest model."""
        return JSONPreview(json.dumps({arm: version_of(path) for arm, path in self.load().newest().items()}))

    def _exists(self) -> bool:
        return bool(self.load().newest())

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}


def recorded_arms(folder: Path) -> TrainedArms:
    """Return the models of a task's folder, as runs have written them down."""
    record = load_record(Area(folder.name, folder.parents[1] / RUNS).record)
    if record is None:
        return TrainedArms(folder)
    entries = {tuple(name.split(".")): entry for name, entry in record.entries.items() if entry.version and entry.digest}
    return TrainedArms(
        folder,
        {name[1]: LastModel(entry.version, entry.digest, entry.run) for name, entry in entries.items() if name[2:] == (MODEL,)},
    )
