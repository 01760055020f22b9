"""The dataset of all trained models of a task."""

import json
import os
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset, DatasetError
from kedro_datasets._typing import JSONPreview

from grpo_pipeline.tasks.trained import TrainedArms, version_of


class TrainedArmsDataset(AbstractDataset[Any, TrainedArms]):
    """Know the newest model of each arm below a folder, so that a parameter can choose among them; read only.

    Args:
        filepath: the folder of the task in ``06_models``; Kedro makes a relative path relative to the project.
        metadata: for Kedro-Viz.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._filepath = Path(os.path.abspath(filepath))
        self.metadata = metadata

    def load(self) -> TrainedArms:
        """Return the folder of models; none of them is read yet."""
        return TrainedArms(self._filepath)

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
