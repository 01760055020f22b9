"""Kedro datasets for training states and final weights: safetensors + JSON, atomic."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from kedro.io.core import AbstractDataset, AbstractVersionedDataset, DatasetError, Version
from kedro_datasets._typing import JSONPreview

from grpo_pipeline.core.storage.checkpoint import (
    Checkpoint,
    CheckpointError,
    NoCheckpoint,
    has_checkpoint,
    load_checkpoint,
    load_progress,
    save_checkpoint,
)
from grpo_pipeline.core.storage.replacement import find_complete
from grpo_pipeline.core.storage.tensor_folder import CorruptFolderError
from grpo_pipeline.core.storage.weights import ModelWeights, load_weights, save_weights
from grpo_pipeline.runs.artefact_records import load_record
from grpo_pipeline.runs.result_folders import RUNS, ResultFolder
from grpo_pipeline.tasks.trained_arms import KINDS, LastModel, TrainedArms, model_name, version_of


class CheckpointDataset(AbstractDataset[Checkpoint | Literal[False], Checkpoint | NoCheckpoint]):
    """The last training state of one arm.

    The same folder may stand in the catalogue under two names, one as the input to resume from and one as the output of
    training, so that the graph has no cycle. Loading before the first save gives ``NoCheckpoint``.

    Example:
        ``{type: grpo_pipeline.datasets.checkpoint.CheckpointDataset, filepath: data/06_models/grpo/checkpoint}``
    """

    in_place = True  # a failed run leaves it to be gone on with

    def __init__(self, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        """Name the folder.

        Args:
            filepath: the folder of the checkpoint.
            metadata: free, for Kedro-Viz.
        """
        self._filepath = Path(filepath)
        self.metadata = metadata

    def load(self) -> Checkpoint | NoCheckpoint:
        """Read the checkpoint, or say that there is none yet; a damaged one raises ``DatasetError``."""
        if not has_checkpoint(self._filepath):
            return NoCheckpoint(str(self._filepath))
        try:
            return load_checkpoint(self._filepath)
        except CheckpointError as error:
            raise DatasetError(str(error)) from error

    def save(self, data: Checkpoint | Literal[False]) -> None:
        """Write the checkpoint; ``False`` means that there is nothing to write at this yield of the training node."""
        if data is False:
            return
        if not isinstance(data, Checkpoint):
            raise DatasetError(
                f"{self._filepath} must be given a Checkpoint or False, got {type(data).__name__}; call snapshot"
            )
        try:
            save_checkpoint(self._filepath, data)
        except CheckpointError as error:
            raise DatasetError(str(error)) from error

    def preview(self) -> JSONPreview:
        """Show how far the run has come, without reading the tensors."""
        progress = load_progress(self._filepath) if has_checkpoint(self._filepath) else None
        return JSONPreview(json.dumps({"folder": self._filepath.name, "progress": progress}))

    def _exists(self) -> bool:
        return has_checkpoint(self._filepath)

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}


class ModelDataset(AbstractVersionedDataset[ModelWeights, ModelWeights]):
    """Final weights of one arm, as a folder of safetensors + JSON; supports ``versioned: true``.

    Example:
        ``{type: grpo_pipeline.datasets.checkpoint.ModelDataset, filepath: data/06_models/grpo/model, versioned: true}``
    """

    def __init__(
        self, filepath: str, version: Version | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        """Name the folder.

        Args:
            filepath: the folder of the weights.
            version: given by Kedro where the entry is versioned.
            metadata: free, for Kedro-Viz.
        """
        super().__init__(PurePosixPath(filepath), version)
        self.metadata = metadata

    def load(self) -> ModelWeights:
        """Read weights and configuration; ``DatasetError`` where they are missing or damaged."""
        folder = Path(self._get_load_path())
        try:
            return load_weights(folder)
        except (FileNotFoundError, CorruptFolderError) as error:
            raise DatasetError(f"{error}; train again or choose another version") from error

    def save(self, data: ModelWeights) -> None:
        """Write weights and configuration atomically."""
        save_weights(Path(self._get_save_path()), data)

    def preview(self) -> JSONPreview:
        """Show the configuration and the number of weights."""
        if not self.exists():
            return JSONPreview(json.dumps({"config": None}))
        weights = self.load()
        count = sum(tensor.numel() for tensor in weights.tensors.values())
        return JSONPreview(json.dumps({"config": dict(weights.config), "parameters": count}))

    def _exists(self) -> bool:
        return find_complete(Path(self._get_load_path())) is not None

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath), "version": self._version}


# The dataset of all trained models of a task.


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
        self._fetched: dict[str, Path] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def load(self) -> TrainedArms:
        """Return the models as they are at the first call, so that all nodes of a run see one; none of them is read yet."""
        if self._found is None:
            self._found = replace(recorded_arms(self._filepath), fetch=self._fetch)
        return self._found

    def save(self, data: Any) -> None:
        """Refuse: each arm writes its own model."""
        raise DatasetError(
            f"{self._filepath} must be written by the arms, got {type(data).__name__}; save <task>.<arm>.model"
        )

    def _fetch(self, address: str) -> Path:
        """Bring a registered model here, once; it goes with the dataset."""
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
    """Return the models of a task's folder, as runs have written them down."""
    record = load_record(ResultFolder(folder.name, folder.parents[1] / RUNS).record)
    if record is None:
        return TrainedArms(folder)
    made = {
        (parts[1], parts[2]): LastModel(entry.version, entry.digest, entry.run)
        for name, entry in record.entries.items()
        if len(parts := name.split(".")) == 3 and parts[2] in KINDS
        if entry.version and entry.digest
    }
    # The best weights belong to the last ones of the same run: a later run may have kept none.
    last = {arm: model.run for (arm, kind), model in made.items() if kind == KINDS[0]}
    return TrainedArms(
        folder,
        {
            model_name(arm, kind): model
            for (arm, kind), model in made.items()
            if model.run == last.get(arm)
        },
    )
