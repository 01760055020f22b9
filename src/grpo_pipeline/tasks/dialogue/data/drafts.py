"""Hold examples and refused rows after reading, before they are compared with each other."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_pipeline.tasks.refusals import describe_failure

NEEDS = ("persona", "story", "none", "unknown")
SPLITS = ("train", "val", "test")
QUARANTINE_COLUMNS = ("row", "example_id", "file", "reason")
EXAMPLE_COLUMNS = (
    "example_id",
    "subject_id",
    "partner_id",
    "persona",
    "context",
    "question",
    "answers",
    "needs",
    "story_id",
    "split",
    "row",
    "columns",
    "messages",
)
STORY_COLUMNS = ("story_id", "title", "text", "persona_id")
Row = dict[str, Any]


@dataclass(frozen=True)
class Draft:
    """An example whose own fields are valid.

    Attributes:
        row: line of the file, from 1.
        example_id: id from the file, or made from the content.
        given_id: the persona id that the file gives, or "".
        persona: sentences joined by blanks.
        partner: persona of the other speaker, or "".
        turns: the context, oldest first.
        answers: reference replies.
        needs: one of ``NEEDS``.
        story_id: the story that holds the answer, or "".
        split: split from the file, or ""; several joined by + are those that the persona is drawn for.
        columns: the other cells of the row, for rewards that read them; JSON-able values.
        messages: role and content of each turn, where the file has them apart; else empty.
        file: path of the file, where there are several; else "".
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
    columns: Mapping[str, object] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] = ()
    file: str = ""


@dataclass(frozen=True)
class Reading:
    """Rows of a file: usable rows as drafts, others with the reason for refusal.

    Attributes:
        drafts: usable examples in the order of the file.
        refused: quarantine entries.
        n_rows: rows of the file.
        hidden: control characters and marks of direction that were removed from the usable rows.
        extras: further entries of the report.
    """

    drafts: tuple[Draft, ...]
    refused: tuple[Row, ...]
    n_rows: int
    hidden: int
    extras: Mapping[str, object]


def refusal(row: int, reason: str, *, file: str, example_id: str = "") -> Row:
    """Build a quarantine entry."""
    return dict(zip(QUARANTINE_COLUMNS, (row, example_id, file, reason), strict=True))


def failure(refused: Sequence[Mapping[Any, Any]], *, n_left: int) -> str:
    """Write the first bad row, the number of the others, and the remedy."""
    first = refused[0]
    where = f"{first['file']} line {first['row']}" + (
        f" ({first['example_id']})" if first["example_id"] else ""
    )
    return describe_failure(
        where,
        first["reason"],
        n_refused=len(refused),
        n_rows=len(refused) + n_left,
        n_left=n_left,
        section="dialogue.data",
    )


def digest_of(*texts: str) -> str:
    """Compute a digest of these texts, 12 hexadecimal digits."""
    return hashlib.sha256("\x1f".join(texts).encode()).hexdigest()[:12]
