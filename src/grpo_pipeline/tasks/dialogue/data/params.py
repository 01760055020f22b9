"""Declare the parameters of the dialogue task's data: source, reading, splits and retrieval."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo_pipeline.tasks.params import SplitFractions

Column = Annotated[str, Field(min_length=1)]


class ConversationParams(BaseModel):
    """How conversations of two people become examples.

    Attributes:
        conversation: column with the lines ``<speaker>: <turn>``.
        personas: columns with the persona sentences of the first and the second speaker.
        speakers: names at the start of the lines of the first and of the second speaker.
        replies: the speaker whose turns are replies to be learnt.
        first_turn: number of the first turn that is a reply, counted from 0; earlier turns are context alone.
        every: distance between replies, in turns; with ``both``, an even number takes the turns of a single speaker.
        context_turns: largest number of turns before the reply that are its context.
        partners: how the two speakers of a conversation are divided. ``together`` puts personas that meet, directly or through
            others, into the same split. ``apart`` draws each persona by itself and leaves out conversations that would be in two
            splits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    conversation: Column
    personas: tuple[Column, Column]
    speakers: tuple[Column, Column]
    replies: Literal["both", "first", "second"]
    first_turn: Annotated[int, Field(ge=1)]
    every: Annotated[int, Field(ge=1)]
    context_turns: Annotated[int, Field(ge=1)]
    partners: Literal["together", "apart"]

    @model_validator(mode="after")
    def _speakers_differ(self) -> Self:
        for name in ("personas", "speakers"):
            first, second = getattr(self, name)
            if first == second:
                raise ValueError(
                    f"dialogue.data.conversations.{name} must be two different names, got {first!r} twice; name both speakers'"
                )
        return self


class DialogueDataParams(BaseModel):
    """How the raw data is read and checked (docs/dialogue/data.md).

    Attributes:
        source: ``generated`` writes the data first; ``jsonl`` reads rows; ``conversations`` a table of conversations.
        root: the data root; it is set through ``dialogue_root`` in globals.yml or on the command line.
        stories_from: source of the corpus: a ``file`` of stories, or the ``personas`` of the data themselves.
        splits_from: ``drawn`` by ``dialogue.split``, or the key ``split`` of each row of the ``file``.
        max_question_bytes: a longer question loses turns of its context, oldest first; the persona is never cut.
        on_bad_row: ``fail`` stops at the end of the checks; ``quarantine`` goes on without the bad rows and lists them.
        conversations: how conversations are read; null with every other source.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    source: Literal["generated", "jsonl", "conversations"]
    root: str
    stories_from: Literal["file", "personas"]
    splits_from: Literal["drawn", "file"]
    max_question_bytes: Annotated[int, Field(ge=32)]
    on_bad_row: Literal["fail", "quarantine"]
    conversations: ConversationParams | None

    @model_validator(mode="after")
    def _sections_fit_the_source(self) -> Self:
        if (self.source == "conversations") != (self.conversations is not None):
            rule = "a section" if self.source == "conversations" else "null"
            raise ValueError(
                f"dialogue.data.conversations must be {rule} with source: {self.source}, "
                f"got {'null' if self.conversations is None else 'a section'}; correct one of them"
            )
        if self.source != "jsonl" and self.splits_from == "file":
            raise ValueError(
                f"dialogue.data.splits_from must be drawn with source: {self.source}, got file; only rows of JSONL name splits"
            )
        if self.source == "generated" and self.stories_from == "personas":
            raise ValueError(
                "dialogue.data.stories_from must be file with source: generated, got personas; its stories are written"
            )
        return self


class DialogueSplitParams(BaseModel):
    """How the personas are divided. Unused if a file names the splits.

    Attributes:
        seed: decides the split of each persona.
        fractions: shares of the personas.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seed: Annotated[int, Field(ge=0)]
    fractions: SplitFractions


class DenseParams(BaseModel):
    """A local encoder of texts.

    Attributes:
        folder: a Hugging Face folder, model and tokenizer; nothing is downloaded.
        batch_size: texts encoded at a time.
        max_tokens: longer texts are cut at the end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    folder: Column
    batch_size: Annotated[int, Field(ge=1)]
    max_tokens: Annotated[int, Field(ge=2)]


class RetrievalParams(BaseModel):
    """How stories are found.

    Attributes:
        top_n: stories per example.
        query: the ``persona`` alone, or ``persona_and_last_turn``.
        encoder: ``tfidf``, or ``dense`` with the section of that name.
        dense: null with ``tfidf``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    top_n: Annotated[int, Field(ge=1)]
    query: Literal["persona", "persona_and_last_turn"]
    encoder: Literal["tfidf", "dense"]
    dense: DenseParams | None

    @model_validator(mode="after")
    def _dense_is_described(self) -> Self:
        if (self.encoder == "dense") != (self.dense is not None):
            rule = "a section" if self.encoder == "dense" else "null"
            raise ValueError(
                f"dialogue.retrieval.dense must be {rule} with encoder: {self.encoder}, "
                f"got {'null' if self.dense is None else 'a section'}; correct one of them"
            )
        return self
