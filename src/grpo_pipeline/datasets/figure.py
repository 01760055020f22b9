"""A Matplotlib figure saved as an image that can be read back as bytes."""

from kedro.io.core import get_filepath_str
from kedro_datasets.matplotlib import MatplotlibDataset


class FigureDataset(MatplotlibDataset):  # type: ignore[misc]
    """``MatplotlibDataset`` whose ``load`` returns the saved image's bytes, so that a report can embed the picture.

    Example:
        ::

            attention.image_sheet:
              type: grpo_pipeline.datasets.figure.FigureDataset
              filepath: data/08_reporting/image_sheet.png
              versioned: true
    """

    def load(self) -> bytes:
        """Return the bytes of the image file."""
        path = get_filepath_str(self._get_load_path(), self._protocol)
        with self._fs.open(path, mode="rb") as file:
            return bytes(file.read())
