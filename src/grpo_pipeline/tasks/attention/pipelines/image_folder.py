"""Kedro datasets of folders of images: a manifest CSV with the files that it names, and the heatmaps of a prediction."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from kedro.io import AbstractDataset, DatasetError
from kedro_datasets._typing import TablePreview
from PIL import Image

from grpo_pipeline.core.storage.replacement import find_complete, replacing_folder
from grpo_pipeline.datasets.origin import where_to_get
from grpo_pipeline.tasks.attention.data.case_folders import list_cases
from grpo_pipeline.tasks.attention.data.image_folder import ImageChunk, ImageFolder, read_manifest


class ImageFolderDataset(AbstractDataset[ImageChunk | Literal[False], ImageFolder]):
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
                f"{where_to_get(self.metadata)}"
            )
        if "*" in self._manifest:
            try:
                return list_cases(self._root, self._manifest)
            except ValueError as error:
                raise DatasetError(str(error)) from error
        path = Path(os.path.normpath(self._root / self._manifest))  # it may lie beside the root
        if not path.is_file():
            found = sorted(p.name for p in self._root.glob("*.csv")) or "no CSV file"
            raise DatasetError(
                f"{path} must be the manifest, got {found} in {self._root}; set {self._variable}_manifest in globals.yml "
                f"or run with --params {self._section}.manifest=<file>, relative to the root; '*/info.json' is a folder per case"
                f"{where_to_get(self.metadata)}"
            )
        try:
            return ImageFolder(self._root, read_manifest(path), path)
        except ValueError as error:
            raise DatasetError(str(error)) from error

    def save(self, data: ImageChunk | Literal[False]) -> None:
        """Add a chunk to the folder that is being written; the last one puts it in place of the old folder.

        ``False``, and a chunk of images that are the user's, write nothing.
        """
        if data is False or data.source == "manifest":
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


TOP = 65535
MM_PER_INCH = 25.4
RAW = "raw"


@dataclass(frozen=True)
class HeatmapFiles:
    """The pictures of one core, to be added to a folder that is being written.

    Attributes:
        name: of its files, without ending.
        overlay: uint8 [H, W, 3], the heatmap and the points of the first set over the image.
        heatmap: probability, float32 [H, W], in the pixels of the image as it was read; None where it is withheld.
        volume: a nibabel image in the geometry of the input, None where the input is no NIfTI file.
        spacing_mm: row and column spacing, None where unknown.
        is_first: True for the core that starts a new folder.
        is_last: True for the core that completes it.
    """

    name: str
    overlay: np.ndarray
    heatmap: np.ndarray | None
    volume: Any
    spacing_mm: tuple[float, float] | None
    is_first: bool
    is_last: bool


class HeatmapsDataset(AbstractDataset[HeatmapFiles, dict[str, Callable[[], np.ndarray]]]):
    """Save the pictures of one core after the other; the folder appears complete or not at all.

    ``<name>.png`` is the overlay, ``raw/<name>.png`` the heatmap with 16 bits (65535 is probability 1), ``<name>.nii.gz`` the
    heatmap in the geometry of a NIfTI input. PNG files carry the pixel spacing as their resolution where it is known.

    Args:
        filepath: the folder; Kedro makes a relative path relative to the project.
        metadata: for Kedro-Viz.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._filepath = Path(os.path.abspath(filepath))
        self.metadata = metadata
        self._staging: ExitStack | None = None
        self._partial = self._filepath

    def load(self) -> dict[str, Callable[[], np.ndarray]]:
        """Return name -> function that reads the heatmap as probabilities, float64 [H, W].

        Raises:
            DatasetError: if there is no folder.
        """
        folder = find_complete(self._filepath)
        if folder is None:
            raise DatasetError(
                f"{self._filepath} must hold heatmaps, got nothing there; run the pipeline attention_predict"
            )
        return {
            path.stem: partial(read_heatmap, path) for path in sorted((folder / RAW).glob("*.png"))
        }

    def save(self, data: HeatmapFiles) -> None:
        """Add the files of a core; those of the last one put the folder in place of the old one."""
        if data.is_first:
            self._discard()
            self._staging = ExitStack()
            self._partial = self._staging.enter_context(replacing_folder(self._filepath))
            (self._partial / RAW).mkdir()
        if self._staging is None:
            raise DatasetError(
                f"heatmaps for {self._filepath} must start with a first core, got a later one; save them in order"
            )
        write_heatmap(self._partial, data)
        if data.is_last:
            staging, self._staging = self._staging, None
            staging.close()

    def _release(self) -> None:
        """Give up a folder that was not completed; nothing of it stays."""
        self._discard()

    def _discard(self) -> None:
        if self._staging is not None:
            staging, self._staging = self._staging, None
            # An exception inside the context is what makes it remove the partial folder.
            staging.__exit__(DatasetError, DatasetError("abandoned"), None)

    def _exists(self) -> bool:
        return find_complete(self._filepath) is not None

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}


def write_heatmap(folder: Path, data: HeatmapFiles) -> None:
    """Write the files of one core; of one whose heatmap is withheld the overlay alone."""
    # PNG keeps a resolution as (across, down); Pillow takes it per inch.
    told: Any = (
        {}
        if data.spacing_mm is None
        else {"dpi": (MM_PER_INCH / data.spacing_mm[1], MM_PER_INCH / data.spacing_mm[0])}
    )
    Image.fromarray(data.overlay).save(folder / f"{data.name}.png", **told)
    if data.heatmap is None:
        return
    levels = np.round(np.clip(data.heatmap, 0, 1) * TOP).astype(np.uint16)
    Image.fromarray(levels).save(folder / RAW / f"{data.name}.png", **told)
    if data.volume is not None:
        data.volume.to_filename(folder / f"{data.name}.nii.gz")


def read_heatmap(path: Path) -> np.ndarray:
    """Read a 16-bit heatmap as probabilities."""
    with Image.open(path) as picture:
        return np.asarray(picture).astype(np.float64) / TOP
