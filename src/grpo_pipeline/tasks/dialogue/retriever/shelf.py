"""Hold the stories that a retriever finds: their texts, their TF-IDF vectors and their words."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd

from grpo_pipeline.tasks.dialogue.data.params import RetrievalParams
from grpo_pipeline.tasks.dialogue.data.retrieval import retrieval_queries, similarities
from grpo_pipeline.tasks.dialogue.data.story_index import index_stories
from grpo_pipeline.tasks.dialogue.data.text_files import dump_lines
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import story_text
from grpo_pipeline.tasks.dialogue.retriever.word_table import WordRows, word_rows

SHELF_FOLDER = "stories"
FILE = "stories.jsonl"


class Asked(NamedTuple):
    """A search for stories.

    Attributes:
        query: the text that is compared with the stories.
        subject: id of the persona, whose own story is never found; "" if there is none.
        partner: id of the other speaker's persona, likewise.
    """

    query: str
    subject: str
    partner: str


class StoryShelf:
    """S stories by id; shared by all copies of a policy, and no part of its weights.

    Args:
        stories: table ``story_id, title, text, persona_id``.
        top_n: number of stories that a prompt reads.
        query: as ``LearnedRetriever.query``.

    Raises:
        ValueError: if there is no story, or no story has a word.
    """

    def __init__(
        self,
        stories: pd.DataFrame,
        *,
        top_n: int,
        query: Literal["persona", "persona_and_last_turn"],
    ) -> None:
        if stories.empty:
            raise ValueError(
                "dialogue.prompt.retriever must have stories to find, got none; name a corpus, or set it to null"
            )
        self.stories = stories.sort_values("story_id").reset_index(drop=True)
        self.params = RetrievalParams.model_validate(
            {"top_n": top_n, "query": query, "encoder": {"kind": "tfidf"}}
        )
        self.index = index_stories(self.stories, self.params)
        told = list(zip(self.stories["title"], self.stories["text"], strict=True))
        self.texts = [story_text(title, text) for title, text in told]
        self._documents = [f"{title} {text}" for title, text in told]
        self._words: dict[int, WordRows] = {}

    def __len__(self) -> int:
        """Count the stories, S."""
        return len(self.texts)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the shelf itself: it never changes."""
        return self

    def words(self, buckets: int) -> WordRows:
        """Find the words of every story; see ``word_rows``."""
        if buckets not in self._words:
            self._words[buckets] = word_rows(self._documents, buckets=buckets)
        return self._words[buckets]

    def asked(self, examples: pd.DataFrame) -> list[Asked]:
        """Compose what is looked for by each example."""
        queries = retrieval_queries(examples, self.params)
        speakers = zip(examples["subject_id"], examples["partner_id"], strict=True)
        return [Asked(query, *two) for query, two in zip(queries, speakers, strict=True)]

    def similarities(self, asked: Sequence[Asked]) -> np.ndarray:
        """Compare with every story by TF-IDF, float64 [P, S]; -inf for the speakers' own stories."""
        return similarities(self.index, asked, self.params)

    def ids(self, numbers: np.ndarray) -> np.ndarray:
        """Return the ids of the stories of these numbers, text of the same shape."""
        return np.asarray(self.stories["story_id"].to_numpy(str)[numbers])

    def write(self, folder: Path) -> None:
        """Write the stories into a folder that exists; ``read_stories`` reads them."""
        names = list(map(str, self.stories.columns))
        rows = [dict(zip(names, row, strict=True)) for row in self.stories.to_numpy()]
        (folder / FILE).write_bytes(dump_lines(rows))


def read_stories(folder: Path) -> pd.DataFrame:
    """Read the stories that ``StoryShelf.write`` has written.

    Raises:
        FileNotFoundError: if they are not there.
    """
    lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    return pd.DataFrame([json.loads(line) for line in lines])
