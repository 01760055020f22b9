"""Store several Matplotlib figures in a folder of images."""

import base64
from pathlib import PurePosixPath
from typing import Any

from kedro.io.core import get_filepath_str
from kedro_datasets._typing import ImagePreview
from kedro_datasets.matplotlib import MatplotlibDataset
from matplotlib import rc_context

from grpo_pipeline.datasets.figure import SVG


class FigureFolderDataset(MatplotlibDataset):  # type: ignore[misc]
    """Stores a mapping of file name -> figure in a folder; ``load`` returns file name -> bytes, so that a page can embed them.

    Example:
        ::

            <task>.compare.forests:
              type: grpo_pipeline.datasets.figure_folder.FigureFolderDataset
              filepath: data/08_reporting/forests
              versioned: true
    """

    def save(self, data: Any) -> None:
        """Write each figure under its name."""
        with rc_context(SVG):
            super().save(data)

    def load(self) -> dict[str, bytes]:
        """Read the bytes of each image by its name, in alphabetical order."""
        folder = get_filepath_str(self._get_load_path(), self._protocol)
        found = {}
        for path in sorted(self._fs.ls(folder, detail=False)):
            with self._fs.open(path, mode="rb") as file:
                found[PurePosixPath(path).name] = bytes(file.read())
        return found

    def preview(self) -> ImagePreview:
        """Show the first image in Kedro-Viz."""
        return ImagePreview(base64.b64encode(next(iter(self.load().values()))).decode("ascii"))
