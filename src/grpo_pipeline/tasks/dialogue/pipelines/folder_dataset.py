"""Read and write the raw data of the dialogue task as a Kedro dataset."""

from typing import Any

from grpo_pipeline.datasets.raw_file import RawFolderDataset
from grpo_pipeline.tasks.dialogue.data.dataset_folder import DatasetFolder
from grpo_pipeline.tasks.dialogue.data.text_files import DialogueFiles
from grpo_pipeline.tasks.text_lines import TextFile


class DialogueFolderDataset(RawFolderDataset[DialogueFiles]):
    """Open the files of the examples and of the stories; save files by name, all of them or none.

    Args:
        filepath: the data root.
        examples: name of the file of rows or conversations below the root, or of the folder of a saved data set.
        stories: name of the story corpus below the root; it may be absent.
        metadata: for Kedro-Viz.
    """

    def __init__(
        self,
        *,
        filepath: str,
        examples: str = "examples.jsonl",
        stories: str = "stories.jsonl",
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(filepath=filepath, task="dialogue", metadata=metadata)
        self._examples, self._stories = examples, stories

    def load(self) -> DialogueFiles:
        """Open both files as streams; ``tasks.dialogue.data.checks`` checks their content.

        Raises:
            DatasetError: if the root or the file of examples is missing.
        """
        place, setting = self._root / self._examples, "dialogue_examples"
        examples = (
            DatasetFolder(str(place))
            if place.is_dir()
            else self._read(self._examples, holds="the examples", setting=setting)
        )
        corpus = self._root / self._stories
        stories = TextFile(str(corpus)) if corpus.is_file() else None
        return DialogueFiles(self._root, examples, stories)

    def _exists(self) -> bool:
        return (self._root / self._examples).exists()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._root), "examples": self._examples, "stories": self._stories}
