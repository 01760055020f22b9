"""Read examples from a table of conversations: every reply turn with its speaker's persona and the turns before it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_pipeline.tasks.csv_records import check_width, csv_records
from grpo_pipeline.tasks.dialogue.data.drafts import Draft, Reading, Row, digest_of, refusal
from grpo_pipeline.tasks.dialogue.data.example_rows import numbered
from grpo_pipeline.tasks.dialogue.data.hidden_characters import without_hidden
from grpo_pipeline.tasks.dialogue.data.params import ConversationSource
from grpo_pipeline.tasks.dialogue.data.persona_groups import persona_key
from grpo_pipeline.tasks.dialogue.data.text_files import clean_text, lines_of
from grpo_pipeline.tasks.row_error import RowError
from grpo_pipeline.tasks.text_lines import TextFile, composed

REPLIES = {"both": (0, 1), "first": (0,), "second": (1,)}


@dataclass(frozen=True)
class Conversation:
    """A row of the table.

    Attributes:
        personas: of the first and the second speaker, sentences joined by blanks.
        turns: (speaker 0 or 1, text), the text "" where a speaker says nothing.
    """

    personas: tuple[str, str]
    turns: tuple[tuple[int, str], ...]


def read_conversations(file: TextFile, params: ConversationSource) -> Reading:
    """Read every conversation of a CSV file with quoted line breaks.

    Blank turns are refused as replies and left out of every context.

    Raises:
        ValueError: if the file has not the columns that are mapped.
    """
    drafts: list[Draft] = []
    refused: list[Row] = []
    seen, n_rows, n_turns, hidden, n_silent = Counter[str](), 0, 0, 0, 0
    columns = [composed(name) for name in (params.conversation, *params.personas)]
    for number, cells in csv_records(file, columns, section="dialogue.data.source"):
        n_rows += 1
        try:
            check_width(cells, columns)
            visible, n_hidden = without_hidden(cells)
            conversation = read_conversation(visible, params)
        except RowError as error:
            refused.append(refusal(number, str(error), file=file.path))
            continue
        hidden += n_hidden
        n_turns += len(conversation.turns)
        texts = [text for _, text in conversation.turns]
        unique = numbered(digest_of(*conversation.personas, *texts), seen)
        sound, empty = reply_turns(conversation, params)
        n_silent += not sound
        drafts += [
            draft_turn(conversation, turn, params, row=number, name=unique) for turn in sound
        ]
        refused += [
            refusal(
                number,
                f"turn {turn} must not be empty, got ''; drop the line",
                file=file.path,
                example_id=f"{unique}-{turn:02d}",
            )
            for turn in empty
        ]
    told = {"turns": n_turns, "conversations_without_an_example": n_silent}
    return Reading(tuple(drafts), tuple(refused), n_rows, hidden, told)


def read_conversation(cells: Mapping[str, object], params: ConversationSource) -> Conversation:
    """Return personas and turns of a row.

    Raises:
        RowError: if a cell is empty or no UTF-8, or no line begins with a speaker's name.
    """
    first, second = (
        " ".join(clean_text(cells[composed(column)], name=repr(column)).split())
        for column in params.personas
    )
    text = clean_text(cells[composed(params.conversation)], name=repr(params.conversation))
    turns = split_turns(text, params.speakers)
    if not turns:
        raise RowError(
            f"a conversation must have lines that begin with {list(params.speakers)}, got {text[:40]!r}; map the speakers"
        )
    return Conversation((first, second), tuple(turns))


def split_turns(text: str, speakers: Sequence[str]) -> list[tuple[int, str]]:
    """Split a conversation into turns; a line without a speaker's name continues the turn above it."""
    turns: list[tuple[int, str]] = []
    for line in lines_of(text):
        speaker = next(
            (place for place, name in enumerate(speakers) if line.startswith(f"{name}:")), None
        )
        if speaker is not None:
            turns.append((speaker, line[len(speakers[speaker]) + 1 :].strip()))
        elif turns:
            turns[-1] = (turns[-1][0], f"{turns[-1][1]} {line.strip()}".strip())
    return turns


def reply_turns(
    conversation: Conversation, params: ConversationSource
) -> tuple[list[int], list[int]]:
    """Find the turns that are replies, and those that would be replies but are empty; returns their numbers.

    A turn after empty turns only has no context, and is no reply.
    """
    turns = conversation.turns
    chosen = [
        turn
        for turn in range(params.first_turn, len(turns), params.every)
        if turns[turn][0] in REPLIES[params.replies]
    ]
    answered = [turn for turn in chosen if any(text for _, text in turns[:turn])]
    return [turn for turn in answered if turns[turn][1]], [
        turn for turn in chosen if not turns[turn][1]
    ]


def draft_turn(
    conversation: Conversation, turn: int, params: ConversationSource, *, row: int, name: str
) -> Draft:
    """Draft the example whose reply is this turn."""
    speaker, reply = conversation.turns[turn]
    before = [text for _, text in conversation.turns[:turn] if text][-params.context_turns :]
    return Draft(
        row=row,
        example_id=f"{name}-{turn:02d}",
        given_id="",
        persona=conversation.personas[speaker],
        partner=conversation.personas[1 - speaker],
        turns=tuple(before),
        answers=(reply,),
        needs="unknown",
        story_id="",
        split="",
    )


def persona_stories(personas: Mapping[str, str]) -> list[Row]:
    """Make a story of each persona text, owned by the persona's group, sorted by id.

    Args:
        personas: persona text -> persona id of its group.
    """
    distinct = {persona_key(text): (text, group) for text, group in sorted(personas.items())}
    stories = [
        {
            "story_id": f"persona-{digest_of(key)}",
            "title": "somebody else",
            "text": text,
            "persona_id": group,
        }
        for key, (text, group) in distinct.items()
    ]
    return sorted(stories, key=lambda story: story["story_id"])
