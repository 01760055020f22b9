"""Play conversations with an exported model: whole ones with the environment of its training, or on from what was said before."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from grpo_pipeline.rewards.functions import load_function
from grpo_pipeline.tasks.dialogue.data.drafts import EXAMPLE_COLUMNS
from grpo_pipeline.tasks.dialogue.data.prompt_rows import read_answers
from grpo_pipeline.tasks.dialogue.episodes.conversations import Stage
from grpo_pipeline.tasks.dialogue.episodes.environment import (
    Episode,
    name_of,
    play,
    row_of,
)
from grpo_pipeline.tasks.dialogue.episodes.stages import episodes_of
from grpo_pipeline.tasks.dialogue.exported_model import ExportedModel
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import answer_ids
from grpo_pipeline.tasks.dialogue.list_cell import read_list

TURNS = "earlier_turns"
NOT_OF_THE_ROW = ("question", TURNS)
"""Columns of a request that an environment does not read."""


class NoEnvironment:
    """An environment after whose first answer nothing is said: whoever asks for the reply answers it."""

    def reset(self, row: Mapping[str, Any]) -> None:
        """Begin."""

    def step(self, reply: str) -> tuple[str, float, bool]:
        """End with any reply."""
        return "", 0.0, True


class Payment(NamedTuple):
    """A conversation that was played.

    Attributes:
        transcript: the replies, and between them what the environment said.
        paid: the sum of what it paid.
    """

    transcript: list[str]
    paid: float


def stage_of(model: ExportedModel, row: Mapping[Any, Any], question: str) -> Stage | None:
    """Build where the conversation about a row begins; None where a single reply is asked for.

    A row with ``earlier_turns``, a reply and what was said to it in turn, asks for the next reply. One without is played to its
    end. A model that was trained without an environment reads single prompts.

    Raises:
        ValueError: if the environment cannot be imported, or ``earlier_turns`` is not right or leaves no room for a reply.
    """
    if model.environment is None:
        return None
    turns = read_list(row.get(TURNS), name=TURNS)
    if turns is not None:
        return _behind(model, turns)
    path, options, limit, pool = model.environment
    try:
        load_function(path)
    except ValueError as error:
        raise ValueError(
            f"the environment {path!r} of the model's training must be importable, got {name_of(error.__cause__ or error)}; put "
            f"its file on the import path, for instance with PYTHONPATH, or ask for one reply with a column {TURNS}"
        ) from error
    begin = episodes_of(path, options, limit, pool=pool)
    return _stage(model, partial(begin, _row(row, question)))


def payment(stage: Stage, replies: str) -> Payment:
    """Play the lines of a conversation again: what was said in it, and what it is paid.

    Raises:
        ValueError: if the environment fails, or ends it earlier than before.
    """
    lines = replies.split("\n")
    steps = play(stage.begin(), lines)
    if len(steps) < len(lines):
        raise ValueError(
            f"the environment must end a conversation where it did before, got {len(steps)} replies, then {len(lines)}; let it "
            "depend on its row and the replies alone"
        )
    said = [text for line, step in zip(lines, steps, strict=True) for text in (line, step.text)]
    transcript = [text for text in said[:-1] if text is not None]
    return Payment(transcript, sum(step.reward for step in steps))


def _row(row: Mapping[Any, Any], question: str) -> dict[str, Any]:
    """Build what the environment begins with, as in training; an empty cell of a table is None."""
    given = row.get("answers")
    is_empty = given is None or given != given or given in ("", [])
    answers = [] if is_empty else [*read_answers({"answers": given}, "answers")]
    if row.keys() >= set(EXAMPLE_COLUMNS):  # of a run, which keeps all other columns in one
        return row_of(question, answers, row["columns"])
    cells = {
        str(name): None if isinstance(cell, float) and cell != cell else cell
        for name, cell in row.items()
        if name not in NOT_OF_THE_ROW
    }
    return cells | {"prompt": question, "answers": answers}


def _behind(model: ExportedModel, turns: Sequence[Any]) -> Stage | None:
    """Build a stage on which these turns have been said, and one reply is."""
    if len(turns) % 2 or not all(isinstance(text, str) for text in turns):
        raise ValueError(
            f"{TURNS} must be texts, a reply and what was said to it in turn, got {turns!r}; end with what was said"
        )
    if not turns:
        return None
    tokenizer = model.tokenizer
    first: list[int] = []
    for reply, said in zip(turns[::2], turns[1::2], strict=True):
        first += [*tokenizer.encode(reply), tokenizer.eos_id]
        first += answer_ids(tokenizer, said, prompt=model.prompt)
    if len(first) >= model.replies.max_tokens:
        raise ValueError(
            f"{TURNS} must leave room for a reply in the {model.replies.max_tokens} tokens of a conversation, got {len(first)}; "
            "send fewer, or train with a larger dialogue.replies.max_tokens"
        )
    return _stage(model, partial(Episode, f"{__name__}:NoEnvironment", {}, 1, {}), first)


def _stage(model: ExportedModel, begin: Callable[[], Episode], first: Sequence[int] = ()) -> Stage:
    encode = partial(answer_ids, model.tokenizer, prompt=model.prompt)
    return Stage(begin, model.tokenizer.decode, encode, tuple(first))
