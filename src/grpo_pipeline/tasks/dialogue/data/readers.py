"""Read examples from JSON lines ``{"question": "persona: … context: …", "answers": ["…"]}``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_pipeline.tasks.dialogue.data.drafts import (
    NEEDS,
    SPLITS,
    Draft,
    Reading,
    Row,
    digest_of,
    parse_question,
    persona_key,
    refusal,
)
from grpo_pipeline.tasks.dialogue.data.params import ConversationParams
from grpo_pipeline.tasks.dialogue.data.text_files import (
    clean_text,
    lines_of,
    parse_line,
    read_id,
    read_text,
    without_hidden,
)
from grpo_pipeline.tasks.text_lines import (
    RowError,
    TextFile,
    check_width,
    composed,
    csv_records,
    numbered_lines,
)

KEYS = ("question", "answers", "example_id", "persona_id", "needs", "story_id", "split")


def read_rows(file: TextFile, *, names_splits: bool) -> Reading:
    """Read every line; only ``question`` and ``answers`` must be there.

    Args:
        file: JSON lines.
        names_splits: whether every row must say its split; otherwise the key is not read.

    Returns:
        Examples with ``needs: unknown`` and an id made of question and answers where the file says nothing else. Keys that
        are not read are counted in the report.
    """
    drafts, refused, ignored, seen, n_rows, hidden = [], [], Counter[str](), Counter[str](), 0, 0
    for number, line in numbered_lines(file):
        n_rows += 1
        try:
            cells, n_hidden = without_hidden(parse_line(line))
            draft = read_row(cells, number, names_splits=names_splits, seen=seen)
        except RowError as error:
            refused.append(refusal(number, str(error), file=file.path))
            continue
        ignored.update(cells.keys() - set(KEYS))
        hidden += n_hidden
        drafts.append(draft)
    return Reading(
        tuple(drafts),
        tuple(refused),
        n_rows,
        hidden,
        {"ignored_keys": dict(sorted(ignored.items()))},
    )


def read_row(
    cells: Mapping[str, object], number: int, *, names_splits: bool, seen: Counter[str]
) -> Draft:
    """Read one row; ``seen`` counts the ids that are made of the content, so that a repeated row gets its own.

    Raises:
        RowError: what is wrong with it.
    """
    question, answers = read_text(cells, "question"), read_answers(cells)
    persona, turns = parse_question(question)
    needs = read_choice(cells, "needs", NEEDS, default="unknown")
    story_id = read_id(cells, "story_id", default="")
    if needs == "story" and not story_id:
        raise RowError(
            "story_id must name the story that the reply needs, got none; add it or set needs: unknown"
        )
    return Draft(
        row=number,
        example_id=read_id(cells, "example_id", default="")
        or numbered(digest_of(question, *answers), seen),
        given_id=read_id(cells, "persona_id", default=""),
        persona=persona,
        partner="",
        turns=tuple(turns),
        answers=answers,
        needs=needs,
        story_id=story_id,
        split=read_choice(cells, "split", SPLITS) if names_splits else "",
    )


def numbered(name: str, seen: Counter[str]) -> str:
    """Return an id made of content; equal ones are numbered, so that none depends on the order of the file."""
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}-{seen[name]}"


def read_answers(cells: Mapping[str, object]) -> tuple[str, ...]:
    """Return the reference replies.

    Raises:
        RowError: if there is none, or one is empty.
    """
    answers = cells.get("answers")
    if not isinstance(answers, list) or not answers:
        raise RowError(
            f"answers must be a list of at least one reply, got {answers!r}; add a reply or drop the row"
        )
    return tuple(
        clean_text(answer, name=f"answers[{place}]") for place, answer in enumerate(answers)
    )


def read_choice(
    cells: Mapping[str, object], key: str, choices: tuple[str, ...], *, default: str | None = None
) -> str:
    """Return one of the choices.

    Raises:
        RowError: if it is another text.
    """
    value = read_text(cells, key, default=default)
    if value not in choices:
        raise RowError(f"{key} must be one of {list(choices)}, got {value!r}; correct it")
    return value


# Read examples from a table of conversations: every reply turn with its speaker's persona and the turns before it.

REPLIES = {"both": (0, 1), "first": (0,), "second": (1,)}


@dataclass(frozen=True)
class Conversation:
    """One row of the table.

    Attributes:
        personas: of the first and the second speaker, sentences joined by blanks.
        turns: (speaker 0 or 1, text), the text "" where a speaker says nothing.
    """

    personas: tuple[str, str]
    turns: tuple[tuple[int, str], ...]


def read_conversations(file: TextFile, params: ConversationParams) -> Reading:
    """Read every conversation of a CSV file with quoted line breaks.

    Blank turns are refused as replies and left out of every context.

    Raises:
        ValueError: if the file has not the columns that are mapped.
    """
    drafts: list[Draft] = []
    refused: list[Row] = []
    seen, n_rows, n_turns, hidden, n_silent = Counter[str](), 0, 0, 0, 0
    columns = [composed(name) for name in (params.conversation, *params.personas)]
    for number, cells in csv_records(file, columns, section="dialogue.data.conversations"):
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


def read_conversation(cells: Mapping[str, object], params: ConversationParams) -> Conversation:
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
    """Return the turns of a conversation; a line without a speaker's name goes on with the turn above it."""
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
    conversation: Conversation, params: ConversationParams
) -> tuple[list[int], list[int]]:
    """Return the numbers of the turns that are replies, and of those that would be but are empty.

    A turn with nothing but empty turns before it has no context, and is no reply.
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
    conversation: Conversation, turn: int, params: ConversationParams, *, row: int, name: str
) -> Draft:
    """Return the example whose reply is a turn."""
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
    """Return one story per persona text, owned by the persona's group, by id.

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


# Read the story corpus: JSON lines ``{"id": …, "title": …, "text": …}``.


def read_stories(file: TextFile) -> tuple[list[Row], list[Row], int]:
    """Return the sound stories by id, the refused lines, and the number of hidden characters that were removed.

    Every line of an id that is there twice is refused.

    Titles may be empty, texts may not; line breaks become blanks.
    """
    stories, refused, hidden = [], [], 0
    for number, line in numbered_lines(file):
        try:
            cells, n_hidden = without_hidden(parse_line(line))
            stories.append(read_story(cells) | {"row": number})
            hidden += n_hidden
        except RowError as error:
            refused.append(refusal(number, str(error), file=file.path))
    counts = Counter(story["story_id"] for story in stories)
    for story in stories:
        if counts[story["story_id"]] > 1:
            reason = f"story id {story['story_id']!r} must be unique, got it {counts[story['story_id']]} times; rename the others"
            refused.append(refusal(story["row"], reason, file=file.path))
    kept = [
        {key: story[key] for key in story if key != "row"}
        for story in stories
        if counts[story["story_id"]] == 1
    ]
    return sorted(kept, key=lambda story: story["story_id"]), refused, hidden


def read_story(cells: dict[str, object]) -> Row:
    """Return a story that belongs to nobody.

    Raises:
        RowError: if a key is missing or no text.
    """
    title, text = read_text(cells, "title", default=""), read_text(cells, "text")
    return {
        "story_id": read_id(cells, "id"),
        "title": " ".join(title.split()),
        "text": " ".join(text.split()),
        "persona_id": "",
    }
