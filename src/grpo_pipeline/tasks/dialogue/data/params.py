"""Declare the parameters of the dialogue task's data: source, reading, splits and retrieval."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.tasks.params import Section, SplitFractions

Column = Annotated[str, Field(min_length=1)]
Corpus = Literal["file", "personas"]


class GeneratedSource(Section):
    """Dialogues that are written first.

    Attributes:
        kind: ``generated`` writes the data first; ``arithmetic`` sums; ``guess_number`` games; ``prompts`` reads prompts and
            answers; ``jsonl`` rows with personas; ``conversations`` a table of conversations.
    """

    kind: Literal["generated"]
    prompt_column: ClassVar = "question"
    stories_from: ClassVar[Corpus] = "file"
    splits_from: ClassVar = "drawn"


class ArithmeticSource(Section):
    """Sums and short word problems that are written first, and read as prompts.

    Attributes:
        kind: of the source.
        seed: of the numbers and words.
        problems: how many are written.
        largest: largest number that is added; the smallest is 0.
        word_share: share of word problems.
    """

    kind: Literal["arithmetic"]
    prompt_column: ClassVar = "prompt"
    stories_from: ClassVar[Literal["nowhere"]] = "nowhere"
    seed: int = Field(ge=0)
    problems: int = Field(ge=1)
    largest: int = Field(ge=1)
    word_share: float = Field(ge=0, le=1)

    @property
    def columns(self) -> "PromptSource":
        """How the written file is read."""
        return PromptSource(kind="prompts", group="pair")

    @model_validator(mode="after")
    def _has_enough_pairs(self) -> Self:
        if self.problems > (most := (self.largest + 1) ** 2):
            raise ValueError(
                f"problems must be at most {most} for numbers up to {self.largest}, got {self.problems}; raise largest"
            )
        return self


class GuessSource(Section):
    """Games of guessing a number, which are written first, and read as prompts; they need the environment of ``episodes``.

    Attributes:
        kind: of the source.
        seed: of ranges, numbers and guesses.
        games: how many are written.
        span: how many numbers a range has; each begins behind a multiple of 10.
        ranges: how many ranges there are.
        turns: guesses of the player that is imitated, who never listens.
    """

    kind: Literal["guess_number"]
    prompt_column: ClassVar = "prompt"
    stories_from: ClassVar[Literal["nowhere"]] = "nowhere"
    seed: int = Field(ge=0)
    games: int = Field(ge=1)
    span: int = Field(ge=2, le=9)
    ranges: int = Field(ge=1)
    turns: int = Field(ge=1)

    @property
    def columns(self) -> "PromptSource":
        """How the written file is read."""
        return PromptSource(kind="prompts", group="range")


WrittenPrompts = ArithmeticSource | GuessSource


class PromptSource(Section):
    """Prompts and their answers, without persona and stories: JSON lines, a CSV, a Parquet file or a saved data set.

    Attributes:
        kind: of the source.
        prompt: column of the prompt: a text, or a list of messages with ``role`` and ``content``.
        answers: column of the right answers: a text, a number, or a list of them; the column of the prompt: the last message, by
            the assistant, is the answer; null: there are none, and rewards alone teach.
        group: column whose equal values stay in one split; null: each row by itself.
        split: column with ``train``, ``val`` or ``test``; null draws the splits.
    """

    kind: Literal["prompts"]
    stories_from: ClassVar[Literal["nowhere"]] = "nowhere"
    prompt: Column = "prompt"
    answers: Column | None = "answers"
    group: Column | None = None
    split: Column | None = None

    @property
    def prompt_column(self) -> str:
        """Column of the prompt, by the name of every source."""
        return self.prompt


class RowSource(Section):
    """Rows of questions and answers.

    Attributes:
        kind: of the source.
        stories_from: source of the corpus: a ``file`` of stories, or the ``personas`` of the data themselves.
        splits_from: ``drawn`` by ``dialogue.split``, or the key ``split`` of each row of the ``file``.
        marks: what each turn of a context begins with, such as ``Q:`` and ``R:``, in any order; null: each line is a turn.
    """

    kind: Literal["jsonl"]
    prompt_column: ClassVar = "question"
    stories_from: Corpus = "file"
    splits_from: Literal["drawn", "file"] = "drawn"
    marks: tuple[Column, ...] | None = None


class ConversationSource(Section):
    """Conversations of two people, and how they become examples.

    Attributes:
        kind: of the source.
        stories_from: source of the corpus: a ``file`` of stories, or the ``personas`` of the data themselves.
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

    kind: Literal["conversations"]
    prompt_column: ClassVar = "question"
    stories_from: Corpus = "file"
    splits_from: ClassVar = "drawn"
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
                    f"dialogue.data.source.{name} must be two different names, got {first!r} twice; name both speakers'"
                )
        return self


class DialogueDataParams(Section):
    """How the raw data is read and checked (docs/dialogue/data.md).

    Attributes:
        source: what is read.
        root: the data root; it is set through ``dialogue_root`` in globals.yml or on the command line.
        max_question_bytes: a longer question loses turns of its context, oldest first; the persona is never cut.
        on_bad_row: ``fail`` stops at the end of the checks; ``quarantine`` goes on without the bad rows and lists them.
    """

    source: Annotated[
        GeneratedSource | WrittenPrompts | PromptSource | RowSource | ConversationSource,
        Field(discriminator="kind"),
    ]
    root: str
    max_question_bytes: Annotated[int, Field(ge=32)]
    on_bad_row: Literal["fail", "quarantine"]


class DialogueSplitParams(Section):
    """How the personas are divided. Unused where each split has a file, or is named in the rows.

    Attributes:
        seed: decides the split of each persona.
        fractions: shares of the personas.
    """

    seed: Annotated[int, Field(ge=0)]
    fractions: SplitFractions


class TfidfEncoder(Section):
    """Weighted counts of words.

    Attributes:
        kind: ``tfidf``: weighted counts of words; ``dense``: a local encoder of texts.
    """

    kind: Literal["tfidf"]


class DenseEncoder(Section):
    """A local encoder of texts.

    Attributes:
        kind: of the encoder.
        folder: a Hugging Face folder, model and tokenizer; nothing is downloaded.
        batch_size: texts encoded at a time.
        max_tokens: longer texts are cut at the end.
    """

    kind: Literal["dense"]
    folder: Column
    batch_size: Annotated[int, Field(ge=1)]
    max_tokens: Annotated[int, Field(ge=2)]


class RetrievalParams(Section):
    """How stories are found.

    Attributes:
        top_n: stories per example.
        query: the ``persona`` alone, or ``persona_and_last_turn``.
        encoder: what stories and queries are compared by.
    """

    top_n: Annotated[int, Field(ge=1)]
    query: Literal["persona", "persona_and_last_turn"]
    encoder: Annotated[TfidfEncoder | DenseEncoder, Field(discriminator="kind")]
