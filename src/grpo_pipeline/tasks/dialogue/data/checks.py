"""Check raw dialogues: valid examples become canonical rows beside the story corpus, refused ones are listed with reasons."""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from grpo_pipeline.tasks import data_root
from grpo_pipeline.tasks.dialogue.data.conversations import persona_stories, read_conversations
from grpo_pipeline.tasks.dialogue.data.drafts import (
    EXAMPLE_COLUMNS,
    NEEDS,
    QUARANTINE_COLUMNS,
    STORY_COLUMNS,
    Draft,
    Reading,
    Row,
    digest_of,
    failure,
    refusal,
)
from grpo_pipeline.tasks.dialogue.data.example_rows import read_rows
from grpo_pipeline.tasks.dialogue.data.params import (
    ConversationSource,
    DialogueDataParams,
    GeneratedSource,
    PromptSource,
    RowSource,
    WrittenPrompts,
)
from grpo_pipeline.tasks.dialogue.data.persona_groups import group_names, persona_key
from grpo_pipeline.tasks.dialogue.data.prompt_rows import read_prompts
from grpo_pipeline.tasks.dialogue.data.question import FittedQuestion, fit_question
from grpo_pipeline.tasks.dialogue.data.story_corpus import read_stories
from grpo_pipeline.tasks.dialogue.data.text_files import DialogueFiles
from grpo_pipeline.tasks.dialogue.scores.normalisation import is_without_blanks
from grpo_pipeline.tasks.refusals import describe_refusals
from grpo_pipeline.tasks.row_error import RowError

logger = logging.getLogger(__name__)
CheckedData = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, dict[str, object]]


def check_dialogues(
    files: DialogueFiles, generated: Mapping[str, object], params: DialogueDataParams
) -> CheckedData:
    """Sort the rows, and stop if bad rows are not tolerated. Arguments and results as ``sort_dialogues``.

    Raises:
        ValueError: also if a row is bad and ``on_bad_row`` is ``fail``, or no example is left.
    """
    found = sort_dialogues(files, generated, params)
    refuse_rows(found[0], found[2], params)
    return found


def sort_dialogues(
    files: DialogueFiles, generated: Mapping[str, object], params: DialogueDataParams
) -> CheckedData:
    """Check every row, compare the rows with each other, and standardise them; bad rows are listed and do not stop this.

    Args:
        files: the raw files.
        generated: report of ``generate_dialogues``, which runs before this check.
        params: the ``dialogue.data`` parameters.

    Returns:
        checked: ``EXAMPLE_COLUMNS``, in the order of the file; ``split`` is "" where it is drawn later.
        stories: ``STORY_COLUMNS``, by id; ``persona_id`` names the persona that a story is made from, or is "".
        quarantine: ``row, example_id, file, reason`` of refused rows.
        data_report: counts, lengths, shortened questions and digests.

    Raises:
        ValueError: if the root differs from the parameters', a file or column is missing, or there is no row or no story.
    """
    check_root(files, params)
    reading = read_source(files, params)
    check_generated(files, generated, reading, params)
    personas = persona_ids(reading.drafts, params)
    stories, bad_stories, hidden = collect_stories(files, reading.drafts, personas, params)
    refused = [*reading.refused, *bad_stories]
    reasons = compare(reading.drafts, personas, {story["story_id"] for story in stories})
    rows, fitted = [], []
    for place, draft in enumerate(reading.drafts):
        try:
            if place in reasons:
                raise RowError(reasons[place])
            question = fit_question(draft.persona, draft.turns, max_bytes=params.max_question_bytes)
        except RowError as error:
            file = draft.file or files.examples.path
            refused.append(refusal(draft.row, str(error), file=file, example_id=draft.example_id))
            continue
        rows.append(example_row(draft, question, personas))
        fitted.append(question)
    corpus = None if files.stories is None else files.stories.path
    refused.sort(key=lambda entry: (entry["file"] == corpus, entry["file"], entry["row"]))
    needed = [("examples", len(rows) + len(refused))]
    needed += [("stories", len(stories))] if params.source.stories_from != "nowhere" else []
    for name, number in needed:
        if not number:
            told = failure(refused, n_left=len(rows)) if refused else "see docs/dialogue/data.md"
            raise ValueError(f"{files.root} must hold {name}, got none that can be used; {told}")
    tables = (
        pd.DataFrame(rows, columns=list(EXAMPLE_COLUMNS)),
        pd.DataFrame(stories, columns=list(STORY_COLUMNS)),
        pd.DataFrame(refused, columns=list(QUARANTINE_COLUMNS)),
    )
    if told := describe_bad(tables[2], n_left=len(rows)):
        logger.warning("%s; dialogue.quarantine lists them all", told)
    removed = {"removed_hidden_characters": reading.hidden + hidden}
    read = [files.examples, files.stories if params.source.stories_from == "file" else None]
    digests = {Path(file.path).name: file.digest() for file in read if file is not None}
    return *tables, {
        **{"source": params.source.kind, "root": params.root, "sha256": digests},
        **counts(reading, *tables),
        **removed,
        **lengths(tables[0], fitted, params),
    }


def read_source(files: DialogueFiles, params: DialogueDataParams) -> Reading:
    """Read the examples as the kind of the source says."""
    source = params.source
    if isinstance(source, WrittenPrompts):
        return read_prompts(files.examples, source.columns)
    if isinstance(source, PromptSource):
        return read_prompts(files.examples, source)
    if isinstance(source, ConversationSource):
        return read_conversations(files.examples, source)
    marks = source.marks or () if isinstance(source, RowSource) else ()
    return read_rows(files.examples, names_splits=source.splits_from == "file", marks=marks)


def check_root(files: DialogueFiles, params: DialogueDataParams) -> None:
    """Refuse a data root other than the parameters', and a missing corpus."""
    data_root.check_root(files.root, params.root, section="dialogue.data", variable="dialogue_root")
    if params.source.stories_from == "file" and files.stories is None:
        raise ValueError(
            f"{files.root} must hold the story corpus, got no such file; set dialogue_stories in globals.yml, "
            "or dialogue.data.source.stories_from: personas"
        )


def check_generated(
    files: DialogueFiles,
    generated: Mapping[str, object],
    reading: Reading,
    params: DialogueDataParams,
) -> None:
    """Refuse a user's folder if the parameters ask for generated data."""
    is_written = isinstance(params.source, GeneratedSource | WrittenPrompts)
    if is_written and generated.get("examples") != reading.n_rows:
        raise ValueError(
            f"{files.root} must hold the {generated.get('examples')} generated examples while dialogue.data.source.kind is "
            f"{params.source.kind}, got {reading.n_rows} rows; set dialogue.data.source: {{kind: jsonl}} to read your own data"
        )


def persona_ids(drafts: Sequence[Draft], params: DialogueDataParams) -> dict[str, str]:
    """Map speaker (``speaker_of``, or the ``persona_key`` of a partner) -> id of its group, the same for any order of the drafts.

    Personas are one group if they have the same id in the file or, with ``partners: together``, stand in one conversation,
    directly or through others. The group has the file's first id, or one made of its first text.
    """
    source = params.source
    together = isinstance(source, ConversationSource) and source.partners == "together"
    links = []
    for draft in drafts:
        text = f"text:{speaker_of(draft)}"
        links.append((text, text))
        partner = f"text:{persona_key(draft.partner)}"
        links += [(text if together else partner, partner)] if draft.partner else []
        links += [(text, f"id:{draft.given_id}")] if draft.given_id else []
    leaders = group_names(links)
    named = {
        leader: leader.removeprefix("id:")
        if leader.startswith("id:")
        else f"group-{digest_of(leader)}"
        for leader in set(leaders.values())
    }
    return {
        name.removeprefix("text:"): named[leader]
        for name, leader in leaders.items()
        if name.startswith("text:")
    }


def speaker_of(draft: Draft) -> str:
    """Name whose words the reply is: the persona, or the example itself where it has none (no text holds a control character)."""
    return persona_key(draft.persona) if draft.persona else f"\0{draft.example_id}"


def collect_stories(
    files: DialogueFiles,
    drafts: Sequence[Draft],
    personas: Mapping[str, str],
    params: DialogueDataParams,
) -> tuple[list[Row], list[Row], int]:
    """Collect the corpus, its refused lines, and the number of hidden characters that were removed from it."""
    if params.source.stories_from == "personas":
        texts = {text for draft in drafts for text in (draft.persona, draft.partner) if text}
        return persona_stories({text: personas[persona_key(text)] for text in texts}), [], 0
    return read_stories(files.stories) if files.stories is not None else ([], [], 0)


def compare(
    drafts: Sequence[Draft], personas: Mapping[str, str], story_ids: set[str]
) -> dict[int, str]:
    """Map place -> reason for each draft that contradicts other drafts or the corpus."""
    reasons: dict[int, str] = {}
    ids = Counter(draft.example_id for draft in drafts)
    splits: dict[str, set[str]] = {}
    for draft in drafts:
        splits.setdefault(personas[speaker_of(draft)], set()).add(draft.split)
    for place, draft in enumerate(drafts):
        group = personas[speaker_of(draft)]
        if ids[draft.example_id] > 1:
            reasons[place] = (
                f"example id {draft.example_id!r} must be unique, got it {ids[draft.example_id]} times; rename the others"
            )
        elif len(splits[group]) > 1:
            reasons[place] = (
                f"persona or group {group!r} must be in one split, got {sorted(splits[group])}; move all its rows to one of them"
            )
        elif draft.story_id and draft.story_id not in story_ids:
            reasons[place] = (
                f"story_id must be in the story corpus, got {draft.story_id!r}; add the story or clear the key"
            )
    return reasons


def example_row(draft: Draft, question: FittedQuestion, personas: Mapping[str, str]) -> Row:
    """Return an example in canonical columns."""
    values = (
        draft.example_id,
        personas[speaker_of(draft)],
        personas[persona_key(draft.partner)] if draft.partner else "",
        draft.persona,
        question.context,
        question.text,
        list(draft.answers),
        draft.needs,
        draft.story_id,
        draft.split,
        draft.row,
        json.dumps(draft.columns, sort_keys=True),
        json.dumps(kept_messages(draft.messages, question), ensure_ascii=False),
    )
    return dict(zip(EXAMPLE_COLUMNS, values, strict=True))


def kept_messages(
    messages: Sequence[Mapping[str, str]], question: FittedQuestion
) -> list[dict[str, str]]:
    """Drop and cut messages as the question that they make was shortened."""
    kept = [dict(message) for message in messages[question.dropped_turns :]]
    if kept and question.is_cut:
        kept[-1]["content"] = question.context
    return kept


def describe_bad(quarantine: pd.DataFrame, *, n_left: int) -> str:
    """Write how many rows were refused and why the first was."""
    first = (
        f"{quarantine['file'].iloc[0]} line {quarantine['row'].iloc[0]}" if len(quarantine) else ""
    )
    return describe_refusals(quarantine, n_left=n_left, where=first)


def refuse_rows(
    checked: pd.DataFrame, quarantine: pd.DataFrame, params: DialogueDataParams
) -> None:
    """Stop if bad rows are not tolerated, once they are listed.

    Raises:
        ValueError: if an entry is bad and ``on_bad_row`` is ``fail``, or no example is left; names the first one.
    """
    if len(quarantine) and (params.on_bad_row == "fail" or not len(checked)):
        raise ValueError(failure(quarantine.to_dict("records"), n_left=len(checked)))


def counts(
    reading: Reading, checked: pd.DataFrame, stories: pd.DataFrame, quarantine: pd.DataFrame
) -> dict[str, object]:
    """Count rows, examples, stories and the kinds of replies."""
    answers = checked["answers"].map(len)
    needs = checked["needs"].value_counts()
    return {
        "rows": reading.n_rows,
        "examples": len(checked),
        "refused": len(quarantine),
        "personas": int(checked["persona"].map(persona_key).nunique()),
        "persona_groups": int(checked["subject_id"].nunique()),
        "stories": len(stories),
        "needs": {name: int(needs.get(name, 0)) for name in NEEDS},
        "answers_per_example": {
            str(number): int(n) for number, n in answers.value_counts().sort_index().items()
        },
        **reading.extras,
    }


def lengths(
    checked: pd.DataFrame, fitted: Sequence[FittedQuestion], params: DialogueDataParams
) -> dict[str, object]:
    """Return lengths in bytes of UTF-8, and how many questions were shortened."""
    answers = checked["answers"].explode().dropna()  # of a row without answers
    texts = {"question": checked["question"], "answer": answers}
    sizes = {name: column.map(lambda text: len(text.encode())) for name, column in texts.items()}
    shortened = {
        "rule": "turns of the context are left out, oldest first, then the beginning of the last one; the persona is never cut",
        "max_question_bytes": params.max_question_bytes,
        "questions": sum(question.dropped_turns > 0 or question.is_cut for question in fitted),
        "dropped_turns": sum(question.dropped_turns for question in fitted),
        "cut_turns": sum(question.is_cut for question in fitted),
    }
    by_character = int(answers.map(is_without_blanks).sum()) if len(answers) else 0
    if by_character:
        logger.warning(
            "%d of %d answers are in a script without blanks between words: every score counts their characters as words",
            *(by_character, len(answers)),
        )
    measured = {
        name: {"mean": round(float(size.mean()), 1), "max": int(size.max())}
        for name, size in sizes.items()
        if len(size)
    }
    told = {"answers_scored_by_character": by_character} if by_character else {}
    return {"bytes": measured, "shortened": shortened, **told}
