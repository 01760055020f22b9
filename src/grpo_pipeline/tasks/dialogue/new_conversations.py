"""Guess how a table of conversations of two people is described: a column of each one's persona, and lines with speakers."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from grpo_pipeline.tasks.dialogue.data.conversations import read_conversations
from grpo_pipeline.tasks.dialogue.data.params import ConversationSource
from grpo_pipeline.tasks.new_data import Found, Hints, flow, line, read_table
from grpo_pipeline.tasks.text_lines import TextFile

SPEAKER = re.compile(r"^([^:\n]{1,40}):", re.MULTILINE)
LOOKED_AT = 50  # conversations from which the speakers are told
LEAST_TURNS = 4
COVERED = 0.9  # share of the lines that must begin with one of the two
MOST_BYTES, MOST_REPLY_BYTES = 384, 128
ROOM = 256  # tokens of a story beside the question
CHOSEN = {
    "replies": ("both", "whose turns are learnt: both, first or second"),
    "first_turn": (1, "counted from 0; earlier turns are context alone"),
    "every": (3, "1: every turn is an example; an even number takes those of one speaker alone"),
    "context_turns": (3, "turns before the reply that are read"),
    "partners": (
        "apart",
        "personas that meet in two splits lose that conversation; together: they share a split",
    ),
}


def guess_conversations(folder: Path, name: str, hints: Hints) -> Found | None:
    """Describe a CSV file of conversations; None where it is none."""
    table = read_table(folder, name)
    personas = [column for column in table.columns if "persona" in column.lower()]
    found = [
        (column, speakers)
        for column, cells in table.columns.items()
        if column not in personas and (speakers := _speakers(cells[:LOOKED_AT]))
    ]
    if "prompt" in hints.columns or len(personas) != 2 or len(found) != 1:
        return None
    [(column, speakers)] = found
    given = {"conversation": column, "personas": (personas[0], personas[1]), "speakers": speakers}
    chosen = {key: value for key, (value, _) in CHOSEN.items()}
    source = ConversationSource.model_validate(
        {"kind": "conversations", "stories_from": "personas", **given, **chosen}
    )
    reading = read_conversations(TextFile(str(folder / name)), source)
    note = (
        f"{reading.n_rows} conversations of {name} give {len(reading.drafts)} examples; conversation: {column}, "
        f"speakers: {' and '.join(speakers)}"
    )
    return Found("dialogue", {"dialogue_examples": name}, _parameters(source), (note,))


def _speakers(cells: Sequence[str]) -> tuple[str, str] | None:
    """Tell the two speakers of a column, the one who begins most often first; None where lines begin otherwise."""
    lines = [one for cell in cells for one in cell.splitlines() if one.strip()]
    said = Counter(match[1] for one in lines if (match := SPEAKER.match(one)))
    if len(said) < 2 or len(lines) < LEAST_TURNS * len(cells):
        return None
    two = [name for name, _ in said.most_common(2)]
    if sum(said[name] for name in two) < COVERED * len(lines):
        return None
    begins = Counter(match[1] for cell in cells if (match := SPEAKER.match(cell)))
    first, second = sorted(two, key=lambda name: -begins[name])
    return first, second


def _parameters(source: ConversationSource) -> str:
    lines = [
        "dialogue:",
        "  data:",
        line(f"    max_question_bytes: {MOST_BYTES}", "a longer question loses its oldest turns"),
        line(
            "    on_bad_row: quarantine",
            "a bad turn is listed and left out; fail: it stops the run",
        ),
        "    source:",
        "      kind: conversations",
        line(
            "      stories_from: personas", "stories that may be found are the personas of others"
        ),
        line(f"      conversation: {flow(source.conversation)}", "lines that begin with a speaker"),
        line(
            f"      personas: {flow(list(source.personas))}", "of the first and the second speaker"
        ),
        f"      speakers: {flow(list(source.speakers))}",
        *(line(f"      {name}: {flow(value)}", why) for name, (value, why) in CHOSEN.items()),
        "  # language_model: {network: {kind: folder, path: ../my_model, tokenizer: folder}}    # docs/dialogue/model.md",
        "  prompt:",
        line(f"    max_tokens: {MOST_BYTES + ROOM}", "a story and a question; bytes are tokens"),
        "  replies:",
        line(f"    max_tokens: {MOST_REPLY_BYTES}", "a longer reply is cut"),
    ]
    return "\n".join(lines) + "\n"
