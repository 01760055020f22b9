"""Build the model input of the dialogue task: examples with their splits and retrieved stories, and the stories."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pandas as pd

from grpo_pipeline.tasks.dialogue.data.drafts import EXAMPLE_COLUMNS, SPLITS
from grpo_pipeline.tasks.dialogue.data.params import RetrievalParams
from grpo_pipeline.tasks.dialogue.data.retrieval import retrieve_stories
from grpo_pipeline.tasks.dialogue.data.story_index import StoryIndex
from grpo_pipeline.tasks.stored_examples import Stored


@dataclass(frozen=True)
class DialogueExamples:
    """Dialogues with which a language model is trained and tested.

    Attributes:
        table: one row per example: ``EXAMPLE_COLUMNS`` with ``split`` filled in, and ``story_ids``, the retrieved stories, best
            first, the same number for every example. ``answers`` and ``story_ids`` are lists of text.
        stories: ``story_id, title, text, persona_id``, by id; every id in ``story_ids`` is there.
        digest: of both.
    """

    table: pd.DataFrame
    stories: pd.DataFrame
    digest: str

    @property
    def has_answers(self) -> bool:
        """Whether the examples have right answers: all of them or none."""
        return len(self.table) > 0 and len(self.table["answers"].iloc[0]) > 0

    def stored(self) -> Stored:
        """Split the examples into the parts that a dataset stores."""
        return Stored({"table": self.table, "stories": self.stories}, {}, {"digest": self.digest})

    @classmethod
    def restored(cls, stored: Stored) -> Self:
        """Rebuild the examples from their stored parts; raises ValueError if the digest differs."""
        table, stories = stored.tables["table"], stored.tables["stories"]
        if content_digest(table, stories) != stored.meta["digest"]:
            raise ValueError("another digest")
        return cls(table, stories, stored.meta["digest"])


def build_examples(
    index: StoryIndex,
    checked: pd.DataFrame,
    stories: pd.DataFrame,
    splits: Mapping[str, Sequence[str]],
    params: RetrievalParams,
) -> DialogueExamples:
    """Join checked examples, splits and retrieved stories; an example without a split is left out.

    Raises:
        ValueError: if the index holds other stories, or the splits other examples.
    """
    if sorted(stories["story_id"]) != list(index.story_ids):
        raise ValueError(
            "dialogue.index must be made of dialogue.stories, got other ids; run the pipeline dialogue_data again"
        )
    split_of = {example: name for name, members in splits.items() for example in members}
    checked = checked.assign(split=checked["example_id"].map(split_of))
    if split_of.keys() != set(checked["example_id"]):
        raise ValueError(
            "dialogue.splits must name every checked example, got others; run the pipeline dialogue_data again"
        )
    table = checked.loc[checked["split"].isin(SPLITS), list(EXAMPLE_COLUMNS)]
    found = pd.Series(retrieve_stories(index, table, params), index=table.index, dtype=object)
    table = table.assign(story_ids=found).reset_index(drop=True)
    corpus = stories.sort_values("story_id").reset_index(drop=True)
    return DialogueExamples(table, corpus, content_digest(table, corpus))


def with_table(examples: DialogueExamples, table: pd.DataFrame) -> DialogueExamples:
    """Replace the table of the examples, for another split."""
    return replace(examples, table=table, digest=content_digest(table, examples.stories))


def question_and_answer(examples: DialogueExamples, rows: np.ndarray) -> pd.DataFrame:
    """Tabulate questions for people, with what the right reply needs, and the first right reply."""
    table = examples.table.iloc[rows]
    return table[["needs", "question"]].assign(answer=first_answers(table))


def first_answers(table: pd.DataFrame) -> list[str]:
    """List the first right answer of each example, or an empty text without one."""
    return [texts[0] if len(texts) else "" for texts in table["answers"]]


def content_digest(*tables: pd.DataFrame) -> str:
    """Return a digest of the cells of tables, in their order."""
    rows = [table.to_dict(orient="records") for table in tables]
    return hashlib.sha256(
        json.dumps(rows, ensure_ascii=False, sort_keys=True, default=int).encode()
    ).hexdigest()
