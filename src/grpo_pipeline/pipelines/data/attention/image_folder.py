"""Kedro dataset for a folder of images: a manifest CSV and the files that it names."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kedro.io import AbstractDataset, DatasetError
from kedro_datasets._typing import TablePreview
from PIL import Image

from grpo_pipeline.core.storage.files import replacing_folder
from grpo_pipeline.tasks.attention.data.cases import list_cases
from grpo_pipeline.tasks.attention.data.image_folder import ImageChunk, ImageFolder, read_manifest


class ImageFolderDataset(AbstractDataset[ImageChunk, ImageFolder]):
    """Load a data root lazily; save one chunk by chunk, so that it appears complete or not at all.

    Args:
        filepath: the data root; Kedro makes a relative path in the catalogue relative to the project.
        manifest: name of the manifest below the root, or its absolute path; ``*/info.json`` for a folder per case.
        section: of the parameters that name root and manifest, for messages; globals.yml has their names with ``_`` for ``.``.
        metadata: for Kedro-Viz.
    """

    is_keyed = True  # of the user

    def __init__(
        self,
        *,
        filepath: str,
        manifest: str = "manifest.csv",
        section: str = "attention.data",
        metadata: dict[str, Any] | None = None,
    ) -> None:
        # abspath, not resolve: the messages name the path as the user wrote it; links are judged file by file.
        self._root = Path(os.path.abspath(filepath))
        self._manifest = manifest
        self._section, self._variable = section, section.removesuffix(".data").replace(".", "_")
        self.metadata = metadata
        self._staging: ExitStack | None = None
        self._partial = self._root
        self._rows: list[pd.DataFrame] = []

    def load(self) -> ImageFolder:
        """Read the manifest as text; images are read later, one by one.

        Raises:
            DatasetError: if the root or the manifest is missing or the manifest is not a table.
        """
        if not self._root.is_dir():
            raise DatasetError(
                f"the data root must be an existing folder, got nothing at {self._root}; "
                f"set {self._variable}_root in globals.yml or run with --params {self._section}.root=<folder>"
            )
        if "*" in self._manifest:
            try:
                return list_cases(self._root, self._manifest)
            except ValueError as error:
                raise DatasetError(str(error)) from error
        path = self._root / self._manifest
        if not path.is_file():
            found = sorted(p.name for p in self._root.glob("*.csv")) or "no CSV file"
            raise DatasetError(
                f"{path} must be the manifest, got {found} in {self._root}; set {self._variable}_manifest in globals.yml, "
                "relative to the root, to '*/info.json' for a folder per case"
            )
        try:
            return ImageFolder(self._root, read_manifest(path), path)
        except ValueError as error:
            raise DatasetError(str(error)) from error

    def save(self, data: ImageChunk) -> None:
        """Add a chunk to the folder that is being written; the last one puts it in place of the old folder."""
        if data.source == "manifest":
            return
        if data.is_first:
            self._discard()
            self._staging = ExitStack()
            self._partial = self._staging.enter_context(replacing_folder(self._root))
        if self._staging is None:
            raise DatasetError(
                f"chunks for {self._root} must start with a first chunk, got a later one; save them in order"
            )
        for relpath, array in data.files.items():
            # Write grey levels or a mask (as 0 and 255) as an 8-bit PNG.
            path = self._partial / relpath
            path.parent.mkdir(parents=True, exist_ok=True)
            levels = array.astype(np.uint8) * 255 if array.dtype == bool else array
            Image.fromarray(levels).save(path, format="PNG", compress_level=1)
        self._rows.append(data.rows)
        if data.is_last:
            pd.concat(self._rows).to_csv(self._partial / self._manifest, index=False)
            staging, self._staging, self._rows = self._staging, None, []
            staging.close()

    def preview(self, nrows: int = 20) -> TablePreview:
        """Return the first rows of the manifest for Kedro-Viz."""
        return TablePreview(self.load().manifest.head(nrows).to_dict(orient="split"))

    def _release(self) -> None:
        """Give up a folder that was not completed; nothing of it stays."""
        self._discard()

    def _discard(self) -> None:
        if self._staging is not None:
            staging, self._staging, self._rows = self._staging, None, []
            # An exception inside the context is what makes it remove the partial folder.
            staging.__exit__(DatasetError, DatasetError("abandoned"), None)

    def _exists(self) -> bool:
        if "*" in self._manifest:
            return any(self._root.glob(self._manifest))
        return (self._root / self._manifest).is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._root), "manifest": self._manifest}
