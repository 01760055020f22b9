"""Compose the question that a model reads, parse it, and shorten it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_pipeline.tasks.dialogue.data.text_files import lines_of
from grpo_pipeline.tasks.row_error import RowError

QUESTION = "persona: {persona} context: {context}"
PARTS = re.compile(r"\s*persona:\s*(.*?)\s*\bcontext:\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True)
class FittedQuestion:
    """A question of the allowed length.

    Attributes:
        text: the text that the model reads.
        context: the remaining turns, joined by newlines.
        dropped_turns: the removed turns, oldest first.
        is_cut: whether the beginning of the last turn was removed, too.
    """

    text: str
    context: str
    dropped_turns: int
    is_cut: bool


def format_question(persona: str, context: str) -> str:
    """Write ``persona: {persona} context: {context}``, or the context alone without a persona."""
    return QUESTION.format(persona=persona, context=context) if persona else context


def parse_question(question: str, marks: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Parse persona and turns of a question; the inverse of ``format_question`` up to blanks.

    Turns are lines, or what begins with one of the marks, which are taken away.

    Raises:
        RowError: if it does not have the two parts, or one of them is empty.
    """
    parts = PARTS.fullmatch(question)
    if parts is None:
        raise RowError(
            f"question must read 'persona: … context: …', got {shorten(question)!r}; write both parts"
        )
    persona, turns = (
        " ".join(parts[1].split()),
        [turn.strip() for turn in _turns_of(parts[2], marks)],
    )
    for name, part in (("persona", persona), ("context", turns)):
        if not part:
            raise RowError(
                f"the {name} of a question must not be empty, got {shorten(question)!r}; write it or drop the row"
            )
    return persona, turns


def _turns_of(context: str, marks: Sequence[str]) -> list[str]:
    if not marks:
        return lines_of(context)
    anywhere = "|".join(map(re.escape, marks))
    return [turn for turn in re.split(rf"(?<!\S)(?:{anywhere})(?!\S)", context) if turn.strip()]


def fit_question(persona: str, turns: Sequence[str], *, max_bytes: int) -> FittedQuestion:
    """Shorten the context until the question has at most ``max_bytes`` bytes of UTF-8.

    Whole turns are left out, oldest first. If the last one alone is too long its beginning is left out, never inside a
    character. The persona is never cut.

    Raises:
        RowError: if the persona leaves no room for a context.
    """
    room = max_bytes - len(format_question(persona, "").encode())
    if room < 1:
        raise RowError(
            f"the persona must leave room for a context in {max_bytes} bytes, got {len(persona.encode())} bytes; "
            "raise dialogue.data.max_question_bytes or shorten it"
        )
    kept = list(turns)
    while len(kept) > 1 and len("\n".join(kept).encode()) > room:
        kept.pop(0)
    context = "\n".join(kept)
    is_cut = len(context.encode()) > room
    if is_cut:
        context = context.encode()[-room:].decode(errors="ignore").lstrip()
    if not context:
        raise RowError(
            f"the last turn must leave a character in {room} bytes, got none; raise dialogue.data.max_question_bytes"
        )
    return FittedQuestion(
        format_question(persona, context), context, len(turns) - len(kept), is_cut
    )


def shorten(text: str, limit: int = 60) -> str:
    """Shorten a text to its beginning, for a message."""
    return text if len(text) <= limit else f"{text[:limit]}…"
