"""Store training states and final weights as safetensors and JSON, atomically."""

import json
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


class CheckpointDataset(AbstractDataset[Checkpoint | Literal[False], Checkpoint | NoCheckpoint]):
    """The last training state of an arm.

    The same folder may stand in the catalogue under two names: as the input to resume from, and as the output of training. So the
    graph has no cycle. Loading before the first save gives ``NoCheckpoint``.

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
        """Read the checkpoint, or ``NoCheckpoint`` before the first save; a damaged one raises ``DatasetError``."""
        if not has_checkpoint(self._filepath):
            return NoCheckpoint(str(self._filepath))
        try:
            return load_checkpoint(self._filepath)
        except CheckpointError as error:
            raise DatasetError(str(error)) from error

    def save(self, data: Checkpoint | Literal[False]) -> None:
        """Write the checkpoint; ``False`` means that this yield of the training node writes nothing."""
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
    """Final weights of an arm, as a folder of safetensors + JSON; supports ``versioned: true``.

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
        """Read weights and configuration; raises ``DatasetError`` if they are missing or damaged."""
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
