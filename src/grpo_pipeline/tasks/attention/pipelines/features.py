"""Kedro dataset for the features of a frozen encoder: one safetensors file with its key in the header, mapped into memory."""

import json
from pathlib import Path
from typing import Any, Literal

from kedro.io.core import AbstractDataset, DatasetError
from kedro_datasets._typing import JSONPreview
from safetensors import SafetensorError

from grpo_pipeline.tasks.attention.frozen_features import FeatureChunk, FeatureSet
from grpo_pipeline.tasks.attention.pipelines.feature_file import FeatureFile, map_features


class FeaturesDataset(AbstractDataset[FeatureSet | FeatureChunk | Literal[False], FeatureSet]):
    """Features keyed by weights and data; loading before the first save gives an empty set.

    Saved whole or chunk by chunk, and loaded as a read-only memory map, so that they may be larger than memory. The same file
    may stand in the catalogue under two names, one to look up and one to write, so that the graph has no cycle.
    """

    is_keyed = True

    def __init__(self, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        """Name the file.

        Args:
            filepath: the safetensors file.
            metadata: free, for Kedro-Viz.
        """
        self._filepath = Path(filepath)
        self.metadata = metadata
        self._open: FeatureFile | None = None

    def load(self) -> FeatureSet:
        """Map the features, or return an empty set; a damaged file raises ``DatasetError``."""
        if not self._filepath.is_file():
            return FeatureSet(key="", values=None)
        try:
            return FeatureSet(*map_features(self._filepath))
        except SafetensorError as error:
            raise DatasetError(
                f"features {self._filepath} must be a safetensors file, got: {error}; remove it"
            ) from error

    def save(self, data: FeatureSet | FeatureChunk | Literal[False]) -> None:
        """Write the features, or add a chunk of them; the last one replaces the old file in one step.

        A set that the file already holds is not written again: its values are the map of that file. ``False`` writes nothing.

        Raises:
            DatasetError: if chunks do not follow each other.
        """
        if data is False:
            return
        start = 0 if isinstance(data, FeatureSet) else data.start
        if isinstance(data, FeatureSet) and data.key and self._holds(data.key):
            return
        if start == 0:
            self._discard()
            self._open = self._begin(data)
        if self._open is None:
            raise DatasetError(
                f"chunks for {self._filepath} must start with row 0, got row {start}; save them in order"
            )
        try:
            if data.values is not None:
                self._open.append(data.values, start=start)
            if isinstance(data, FeatureSet) or data.is_last:
                self._open.finish()
                self._open = None
        except BaseException:
            self._discard()
            raise

    def _begin(self, data: FeatureSet | FeatureChunk) -> FeatureFile:
        if data.values is None:
            return FeatureFile(self._filepath, data.key, shape=None)
        total = len(data.values) if isinstance(data, FeatureSet) else data.total
        return FeatureFile(self._filepath, data.key, shape=(total, *data.values.shape[1:]))

    def _holds(self, key: str) -> bool:
        try:
            return self.load().key == key
        except DatasetError:
            return False

    def _release(self) -> None:
        """Give up a file that was not completed; nothing of it stays."""
        self._discard()

    def _discard(self) -> None:
        if self._open is not None:
            abandoned, self._open = self._open, None
            abandoned.abandon()

    def preview(self) -> JSONPreview:
        """Show the key and the shape."""
        found = self.load()
        shape = None if found.values is None else list(found.values.shape)
        return JSONPreview(json.dumps({"key": found.key, "shape": shape}))

    def _exists(self) -> bool:
        return self._filepath.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}
