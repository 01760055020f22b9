"""Guess how a file of prompts and answers is described: JSON lines, a CSV, a Parquet file or a saved data set."""

import json
from collections.abc import Sequence
from pathlib import Path

from grpo_pipeline.tasks.csv_records import csv_records
from grpo_pipeline.tasks.dialogue.data.dataset_folder import (
    DatasetFolder,
    files_of_splits,
    parts_by_split,
    read_table,
)
from grpo_pipeline.tasks.dialogue.data.drafts import Reading
from grpo_pipeline.tasks.dialogue.data.params import PromptSource
from grpo_pipeline.tasks.dialogue.data.prompt_rows import ASSISTANT, read_list, read_prompts
from grpo_pipeline.tasks.dialogue.new_conversations import guess_conversations
from grpo_pipeline.tasks.new_data import (
    TABLES,
    Found,
    Hints,
    UnclearDataError,
    column_of,
    flow,
    line,
)
from grpo_pipeline.tasks.text_lines import TextFile, numbered_lines

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", *TABLES)
NAMES = {
    "prompt": (
        "prompt",
        "messages",
        "conversation",
        "conversations",
        "question",
        "instruction",
        "input",
        "query",
        "problem",
    ),
    "answers": (
        "answers",
        "answer",
        "response",
        "output",
        "completion",
        "target",
        "reply",
        "solution",
        "label",
    ),
    "group": ("group", "topic", "source", "document", "document_id", "conversation_id"),
    "split": ("split", "subset", "partition"),
}
COLUMNS = tuple(NAMES)
FORM = "a file of prompts (docs/dialogue/data.md)"
LEAST_GROUPS = 10  # of a column that is guessed to be a group: the splits share them out
LONGEST_REPLY = 256  # tokens: bytes, by default
LEAST_BYTES = 32  # of dialogue.data.max_question_bytes
ROOM = 16  # tokens of a prompt beside its bytes: the cue, begin and end


def guess(folder: Path, hints: Hints) -> Found | None:
    """Describe a file of prompts; None where there is none.

    Raises:
        UnclearDataError: if there are several files, or no row of the file can be read.
    """
    if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
        return _describe(DatasetFolder(str(folder)), ".", hints)
    if not hints.table and _are_splits(folder, hints):
        return _describe(DatasetFolder(str(folder)), ".", hints)
    names = (
        [hints.table] if hints.table else sorted(p.name for p in folder.iterdir() if p.is_file())
    )
    files = [name for name in names if name.lower().endswith(SUFFIXES)]
    columns = {name: _columns(TextFile(str(folder / name))) for name in files}
    told = [name for name, names in columns.items() if _prompt_of(names, hints)]
    if len(told) > 1:
        raise UnclearDataError(
            f"{folder} must have one file of prompts, got {', '.join(told)}; name it: --table {told[0]}, or write train.jsonl, "
            "valid.jsonl and test.jsonl, a file for each split"
        )
    if not told:
        if (name := next((name for name, names in columns.items() if names), None)) is None:
            return None
        for table in (table for table in files if table.lower().endswith(TABLES)):
            if (talk := guess_conversations(folder, table, hints)) is not None:
                return talk
            if _names_files(folder, table):
                return None
        raise UnclearDataError(
            f"{name} must have a column with the prompt, got {', '.join(columns[name])}; name it: --column prompt=<column>"
        )
    [name] = told
    return _describe(TextFile(str(folder / name)), name, hints)


def _are_splits(folder: Path, hints: Hints) -> bool:
    """Check whether the files that have a prompt are of several splits, one of them ``train``."""
    named = files_of_splits(folder)
    files = {*named, *(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)}
    told = [path for path in files if _prompt_of(_columns(TextFile(str(path))), hints)]
    return {*told} <= named.keys() and (
        len(told) > 1 or any(path.parent != folder for path in told)
    )


def _describe(file: TextFile, name: str, hints: Hints) -> Found | None:
    columns = _columns(file)
    if (prompt := _prompt_of(columns, hints)) is None:
        return None
    chosen = {
        key: column_of([c for c in columns if c != prompt], key, names, hints)
        for key, names in NAMES.items()
        if key != "prompt"
    }
    source = PromptSource(kind="prompts", prompt=prompt, **chosen)
    notes = []
    try:
        if source.answers is None and _end_with_an_answer(file, source):
            source = source.model_copy(update={"answers": prompt})
        reading = read_prompts(file, source)
        n_groups = len({draft.given_id for draft in reading.drafts})
        if source.group and "group" not in hints.columns and n_groups < LEAST_GROUPS:
            notes.append(
                f"column {source.group} has too few values to be shared out, {n_groups}: rows are split one by one; "
                f"--column group={source.group} keeps those with the same value in one split"
            )
            source = source.model_copy(update={"group": None})
            reading = read_prompts(file, source)
    except ValueError as error:
        raise UnclearDataError(f"{name}: {error}") from error
    if not reading.drafts:
        raise UnclearDataError(
            f"{name} must have a row that can be read, got none of {reading.n_rows}; the first: {reading.refused[0]['reason']}"
        )
    return Found(
        "dialogue",
        {"dialogue_examples": name},
        _parameters(source, reading),
        (*_notes(name, source, reading), *notes),
    )


def _end_with_an_answer(file: TextFile, source: PromptSource) -> bool:
    """Check whether the prompts are messages of which the last one is the assistant's, in nine rows of ten."""
    drafts = read_prompts(file, source).drafts
    last = [draft.messages[-1]["role"] if draft.messages else "" for draft in drafts]
    return bool(drafts) and last.count(ASSISTANT) >= 0.9 * len(last)


def _parameters(source: PromptSource, reading: Reading) -> str:
    longest = max(len("\n".join(draft.turns).encode()) for draft in reading.drafts)
    replies = [len(text.encode()) + 1 for draft in reading.drafts for text in draft.answers]
    reply = min(max(replies, default=LONGEST_REPLY), LONGEST_REPLY)
    others = {name: value for name, value in source.model_dump().items() if name != "kind"}
    lines = ["dialogue:", "  data:", "    source:", "      kind: prompts"]
    comments = {
        "prompt": "column of the prompt: a text, or messages with role and content",
        "answers": "right answers; the same column: the last message; null: rewards alone teach",
        "group": "rows with the same value stay in one split; null: each by itself",
        "split": "train, val, test; null: drawn by dialogue.split",
    }
    lines += [
        line(f"      {name}: {flow(value)}", comments[name]) for name, value in others.items()
    ]
    lines += [
        line(
            f"    max_question_bytes: {max(longest, LEAST_BYTES)}",
            "the longest prompt; a longer one loses its beginning",
        ),
        line(
            "    on_bad_row: quarantine", "a bad row is listed and left out; fail: it stops the run"
        ),
        "  # language_model: {network: {kind: folder, path: ../my_model, tokenizer: folder}}    # docs/dialogue/model.md",
        "  prompt:",
        line(
            f"    max_tokens: {longest + ROOM}",
            "bytes are tokens; fewer are needed with a tokenizer of words",
        ),
        "  replies:",
        line(f"    max_tokens: {reply}", "the longest answer and its end"),
    ]
    if reward := _reward(reading):
        lines += ["  reward:                        # docs/dialogue/rewards.md", *reward]
    return "\n".join(lines) + "\n"


def _reward(reading: Reading) -> list[str]:
    """Choose the reward: the right number where every answer is one, else the default of conf/base."""
    from grpo_pipeline.tasks.dialogue.scores.number import last_number

    answers = [text for draft in reading.drafts for text in draft.answers]
    if not answers or any(last_number(text) is None for text in answers):
        return []
    terms = [f"    {name}: null" for name in ("f1", "rouge_l", "bleu")]
    return [
        *terms,
        line(
            "    number: {weight: 1.0}",
            "every answer ends with a number: 1 if it is the reply's last one",
        ),
    ]


def _notes(name: str, source: PromptSource, reading: Reading) -> tuple[str, ...]:
    read = f"{len(reading.drafts)} of {reading.n_rows} rows of {'the folder' if name == '.' else name} can be read"
    is_last = source.answers == source.prompt
    answers = "the last message of each" if is_last else source.answers or "none"
    found = [f"{read}; prompt: {source.prompt}, answers: {answers}"]
    if reading.refused:
        found.append(
            f"the first of the others, row {reading.refused[0]['row']}: {reading.refused[0]['reason']}"
        )
    if source.prompt == "instruction" and any(
        draft.columns.get("input") for draft in reading.drafts
    ):
        found.append(
            "the column input is no part of the prompt: join it to instruction in a column of its own, and name that"
        )
    if source.answers is None:
        found.append(
            "without answers there is no supervised arm: set dialogue.arms and a reward that reads no answers"
        )
    return tuple(found)


def _columns(file: TextFile) -> list[str]:
    """List the columns of the first row; empty where the file is no table."""
    path = file.path.lower()
    try:
        if isinstance(file, DatasetFolder):
            part = parts_by_split(file)[0][0]
            if not isinstance(part, DatasetFolder):
                return _columns(part)
            return list(read_table(part).column_names)
        if path.endswith(".parquet"):
            from pyarrow import parquet

            return list(parquet.read_schema(file.path).names)
        if path.endswith(TABLES):
            return [c for c in next(csv_records(file, [], section="the table"))[1] if c]
        rows = read_list(file)
        first = json.loads(next(numbered_lines(file))[1]) if rows is None else rows[0]
        return list(first) if isinstance(first, dict) else []
    except (ValueError, OSError, StopIteration, IndexError):
        return []


def _names_files(folder: Path, table: str) -> bool:
    """Check whether the first row of a table names a file below the folder, with its ending or without: it is no text."""
    _, first = next(csv_records(TextFile(str(folder / table)), [], section="the table"))
    names = {Path(cell.strip()).stem for cell in first.values() if cell and cell.strip()}
    others = (p for p in folder.rglob("*") if p.suffix.lower() not in SUFFIXES and p.is_file())
    return any(path.stem in names for path in others)


def _prompt_of(columns: Sequence[str], hints: Hints) -> str | None:
    return column_of(columns, "prompt", NAMES["prompt"], hints) if columns else None
