"""Store generated raw data: a folder with the content, and a JSON file that describes it."""

from typing import Any, cast

from kedro.io.core import AbstractDataset
from kedro_datasets.json import JSONDataset


class GeneratedDataset(JSONDataset):  # type: ignore[misc]
    """Stores pairs of content and description: the content in ``folder``, the description in the file, which ``load`` reads.

    Args:
        filepath: path of the JSON file.
        folder: entry of the dataset that the content is written to.
        metadata: for Kedro-Viz.

    Example:
        ``{type: grpo_pipeline.datasets.generated.GeneratedDataset, filepath: …/generated.json, folder: {type: …, filepath: …}}``
    """

    def __init__(
        self, *, filepath: str, folder: dict[str, Any], metadata: dict[str, Any] | None = None
    ) -> None:
        super().__init__(filepath=filepath, metadata=metadata)
        self._folder: Any = AbstractDataset.from_config("folder", folder)

    def save(self, data: tuple[Any, Any]) -> None:
        """Write the content first, so that an existing description proves that the content exists."""
        content, told = data
        self._folder.save(content)
        # Kedro wraps the methods of every class; this calls the parent's unwrapped method.
        cast(Any, JSONDataset.save).__wrapped__(self, told)

    def _release(self) -> None:
        self._folder.release()
        super()._release()
