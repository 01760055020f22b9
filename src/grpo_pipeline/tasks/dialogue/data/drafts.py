"""Examples and refused rows as they are read, before they are compared with each other."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_pipeline.tasks.dialogue.data.text_files import lines_of
from grpo_pipeline.tasks.text_lines import RowError

NEEDS = ("persona", "story", "none", "unknown")
SPLITS = ("train", "val", "test")
QUARANTINE_COLUMNS = ("row", "example_id", "file", "reason")
EXAMPLE_COLUMNS = (
    "example_id",
    "persona_id",
    "partner_id",
    "persona",
    "context",
    "question",
    "answers",
    "needs",
    "story_id",
    "split",
    "row",
)
STORY_COLUMNS = ("story_id", "title", "text", "persona_id")
Row = dict[str, Any]


@dataclass(frozen=True)
class Draft:
    """An example whose own parts are sound.

    Attributes:
        row: line of the file, from 1.
        example_id: as given, or made of the content.
        given_id: the persona id that the file gives, or "".
        persona: sentences joined by blanks.
        partner: persona of the other speaker, or "".
        turns: the context, oldest first.
        answers: reference replies.
        needs: one of ``NEEDS``.
        story_id: the story that holds the answer, or "".
        split: as the file says, or "".
    """

    row: int
    example_id: str
    given_id: str
    persona: str
    partner: str
    turns: tuple[str, ...]
    answers: tuple[str, ...]
    needs: str
    story_id: str
    split: str


@dataclass(frozen=True)
class Reading:
    """Rows of one file: the usable ones as drafts, the others with the reason for refusal.

    Attributes:
        drafts: usable examples in the order of the file.
        refused: quarantine entries.
        n_rows: rows of the file.
        hidden: control characters and marks of direction that were removed from the usable rows.
        extras: what the language model has to say in the report.
    """

    drafts: tuple[Draft, ...]
    refused: tuple[Row, ...]
    n_rows: int
    hidden: int
    extras: Mapping[str, object]


def refusal(row: int, reason: str, *, file: str, example_id: str = "") -> Row:
    """Return a quarantine entry."""
    return dict(zip(QUARANTINE_COLUMNS, (row, example_id, file, reason), strict=True))


def failure(refused: Sequence[Mapping[Any, Any]], *, n_left: int) -> str:
    """Return the sentence that names the first bad row, counts the others and says what to do."""
    first = refused[0]
    where = f"{first['file']} line {first['row']}" + (
        f" ({first['example_id']})" if first["example_id"] else ""
    )
    if not n_left:
        return f"{where}: {first['reason']} ({len(refused)} entries are bad and none is left, there is nothing to go on with)"
    remedy = "correct them, or set dialogue.data.on_bad_row: quarantine to go on without them"
    return (
        f"{where}: {first['reason']} ({len(refused)} entries are bad, {n_left} are sound: {remedy})"
    )


# Which examples share a persona, directly or through others: connected components of links.


def group_names(links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return name -> the first name, in alphabetical order, of all that are linked to it.

    Args:
        links: pairs of names that belong together; a name alone is linked to itself. Their order does not matter.
    """
    from scipy.sparse import coo_array  # the parameters of the data are read without scipy
    from scipy.sparse.csgraph import connected_components

    pairs = sorted(set(links))
    names = sorted({name for pair in pairs for name in pair})
    place = {name: index for index, name in enumerate(names)}
    first, second = (
        np.array([place[pair[end]] for pair in pairs], dtype=np.int64) for end in (0, 1)
    )
    graph = coo_array((np.ones(len(pairs)), (first, second)), shape=(len(names), len(names)))
    labels = (
        connected_components(graph, directed=False)[1] if names else np.empty(0, dtype=np.int64)
    )
    leader: dict[int, str] = {}
    return {
        name: leader.setdefault(int(label), name) for name, label in zip(names, labels, strict=True)
    }


def digest_of(*texts: str) -> str:
    """Return 12 hexadecimal digits that stand for these texts."""
    return hashlib.sha256("\x1f".join(texts).encode()).hexdigest()[:12]


def persona_key(persona: str) -> str:
    """Return the form in which personas are compared: their words in alphabetical order, without case.

    Data sets hold the same sentences in another order; that is the same persona.
    """
    return " ".join(sorted(persona.casefold().split()))


# The question that a model reads: how it is put together, taken apart and shortened.

QUESTION = "persona: {persona} context: {context}"
PARTS = re.compile(r"\s*persona:\s*(.*?)\s*\bcontext:\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True)
class FittedQuestion:
    """A question of the allowed length.

    Attributes:
        text: what the model reads.
        context: the turns that are left, joined by newlines.
        dropped_turns: turns left out, oldest first.
        is_cut: whether the beginning of the last turn is left out as well.
    """

    text: str
    context: str
    dropped_turns: int
    is_cut: bool


def format_question(persona: str, context: str) -> str:
    """Return ``persona: {persona} context: {context}``."""
    return QUESTION.format(persona=persona, context=context)


def parse_question(question: str) -> tuple[str, list[str]]:
    """Return persona and turns of a question; the inverse of ``format_question`` up to blanks.

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
        [turn.strip() for turn in lines_of(parts[2])],
    )
    for name, part in (("persona", persona), ("context", turns)):
        if not part:
            raise RowError(
                f"the {name} of a question must not be empty, got {shorten(question)!r}; write it or drop the row"
            )
    return persona, turns


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
    """Return the beginning of a text for a message."""
    return text if len(text) <= limit else f"{text[:limit]}…"
