"""Kedro dataset for the features of a frozen encoder: one safetensors file with its key in the header."""

import json
import os
from pathlib import Path
from typing import Any

from kedro.io.core import AbstractDataset, DatasetError
from kedro_datasets._typing import JSONPreview
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from grpo_pipeline.tasks.attention.features import FeatureSet


class FeaturesDataset(AbstractDataset[FeatureSet, FeatureSet]):
    """Features keyed by weights and data; loading before the first save gives an empty set.

    The same file may stand in the catalogue under two names, one to look up and one to write, so that the graph has no
    cycle.
    """

    def __init__(self, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        """Name the file.

        Args:
            filepath: the safetensors file.
            metadata: free, for Kedro-Viz.
        """
        self._filepath = Path(filepath)
        self.metadata = metadata

    def load(self) -> FeatureSet:
        """Read the features, or an empty set; a damaged file raises ``DatasetError``."""
        if not self._filepath.is_file():
            return FeatureSet(key="", values=None)
        try:
            with safe_open(self._filepath, framework="numpy") as file:
                key = (file.metadata() or {}).get("key", "")
                return FeatureSet(key=key, values=file.get_tensor("features") if "features" in set(file.keys()) else None)
        except SafetensorError as error:
            raise DatasetError(f"features {self._filepath} must be a safetensors file, got: {error}; remove it") from error

    def save(self, data: FeatureSet) -> None:
        """Write the features atomically."""
        self._filepath.parent.mkdir(parents=True, exist_ok=True)
        partial = self._filepath.with_suffix(".partial")
        tensors = {} if data.values is None else {"features": data.values}
        save_file(tensors, partial, metadata={"key": data.key})
        os.replace(partial, self._filepath)

    def preview(self) -> JSONPreview:
        """Show the key and the shape."""
        found = self.load()
        shape = None if found.values is None else list(found.values.shape)
        return JSONPreview(json.dumps({"key": found.key, "shape": shape}))

    def _exists(self) -> bool:
        return self._filepath.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}
