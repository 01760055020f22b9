"""A value in memory that says what it is: of a file Kedro-Viz shows a part, of a value its description."""

from typing import NewType

from kedro import io

# Kedro-Viz takes the kind of a preview from the name of its type.
TextPreview = NewType("TextPreview", str)


class MemoryDataset(io.MemoryDataset):
    """Kedro's, with the entry's ``description`` under ``kedro-viz`` as its preview."""

    def preview(self) -> TextPreview:
        """Return what the value is; nothing where the entry does not say it."""
        return TextPreview((self.metadata or {}).get("kedro-viz", {}).get("description", ""))
