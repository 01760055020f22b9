"""Store a Matplotlib figure as an image that is read back as bytes."""

from typing import Any

from kedro.io.core import get_filepath_str
from kedro_datasets.matplotlib import MatplotlibDataset
from matplotlib import rc_context

# Texts stay texts, which a page can search and colour. Names inside a drawing follow from its content, so that the same
# figure gives the same bytes.
SVG: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "grpo_pipeline"}


class FigureDataset(MatplotlibDataset):  # type: ignore[misc]
    """``MatplotlibDataset`` whose ``load`` returns the saved image's bytes, so that a report can embed the picture.

    Example:
        ::

            <task>.image_sheet:
              type: grpo_pipeline.datasets.figure.FigureDataset
              filepath: data/08_reporting/image_sheet.png
              versioned: true
    """

    def save(self, data: Any) -> None:
        """Write the figure as an image, of the type in ``save_args`` or the file's name."""
        with rc_context(SVG):
            super().save(data)

    def load(self) -> bytes:
        """Read the bytes of the image file."""
        path = get_filepath_str(self._get_load_path(), self._protocol)
        with self._fs.open(path, mode="rb") as file:
            return bytes(file.read())


class PictureDataset(FigureDataset):
    """Stores the bytes of an image file unchanged: a picture that was drawn without Matplotlib, or an animation.

    Example:
        ::

            <task>.animation:
              type: grpo_pipeline.datasets.figure.PictureDataset
              filepath: data/08_reporting/animation.png
              versioned: true
    """

    def save(self, data: bytes) -> None:
        """Write the bytes; no bytes make an empty file, which means that there is no picture."""
        path = get_filepath_str(self._get_save_path(), self._protocol)
        with self._fs.open(path, mode="wb") as file:
            file.write(data)
        self._invalidate_cache()
