"""Generated raw data: a folder that is written, and the JSON file that says what was."""

from typing import Any, cast

from kedro.io.core import AbstractDataset
from kedro_datasets.json import JSONDataset


class GeneratedDataset(JSONDataset):  # type: ignore[misc]
    """Save pairs of content and what is told of it: the content to ``folder``, the rest to the file; load the rest.

    Args:
        filepath: of the JSON file.
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
        """Write the content first: who reads that it is there can rely on it."""
        content, told = data
        self._folder.save(content)
        # Kedro wraps the methods of every class by itself: what is called here is the parent's own.
        cast(Any, JSONDataset.save).__wrapped__(self, told)

    def _release(self) -> None:
        self._folder.release()
        super()._release()
