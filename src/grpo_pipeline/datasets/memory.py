"""Hold a value in memory, with a description that Kedro-Viz shows in place of a file's preview."""

from typing import NewType

from kedro import io

# Kedro-Viz takes the kind of a preview from the name of its type.
TextPreview = NewType("TextPreview", str)


class MemoryDataset(io.MemoryDataset):
    """Kedro's ``MemoryDataset``, with the entry's ``description`` under ``kedro-viz`` as its preview."""

    def preview(self) -> TextPreview:
        """Show the description of the value; empty without one."""
        return TextPreview((self.metadata or {}).get("kedro-viz", {}).get("description", ""))
