"""Read examples from rows of prompts and answers: JSON lines, a CSV, a Parquet file or a folder of a data set."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from grpo_pipeline.tasks.csv_records import check_width, csv_records
from grpo_pipeline.tasks.dialogue.data.dataset_folder import (
    DatasetFolder,
    describe_parts,
    parts_by_split,
    read_table,
)
from grpo_pipeline.tasks.dialogue.data.drafts import SPLITS, Draft, Reading, digest_of, refusal
from grpo_pipeline.tasks.dialogue.data.example_rows import numbered, read_choice
from grpo_pipeline.tasks.dialogue.data.hidden_characters import without_hidden
from grpo_pipeline.tasks.dialogue.data.params import PromptSource
from grpo_pipeline.tasks.dialogue.data.text_files import clean_text, parse_line, read_id
from grpo_pipeline.tasks.row_error import RowError
from grpo_pipeline.tasks.text_lines import BOM, HEAD, TextFile, composed, numbered_lines

ASSISTANT = "assistant"
SENDERS = {"human": "user", "gpt": ASSISTANT}  # of ShareGPT -> role

if TYPE_CHECKING:  # the rows of other files are read without it
    import pyarrow


def read_prompts(file: TextFile, source: PromptSource) -> Reading:
    """Read every row: ``.csv``, ``.tsv``, ``.parquet``, a JSON list, or else JSON lines; a folder as ``parts_by_split``.

    Returns:
        Examples without a persona, whose turns are the prompt or its messages. Rows that share the group have one ``given_id``.
        Every example has all other columns of the file, None where its row lacks one.

    Raises:
        ValueError: if the file is no such table, or lacks a column that is mapped.
    """
    drafts, refused, seen, n_rows, hidden = [], [], Counter[str](), 0, 0
    parts = parts_by_split(file)
    for part, split in parts:
        for number, cells_of_row in _records(part, source):
            n_rows += 1
            try:
                cells, n_hidden = without_hidden(cells_of_row())
                draft = read_prompt(cells, number, source, seen=seen)
            except RowError as error:
                refused.append(refusal(number, str(error), file=part.path))
                continue
            file_of_row = part.path if len(parts) > 1 else ""
            drafts.append(replace(draft, split=draft.split or split, file=file_of_row))
            hidden += n_hidden
    absent = dict.fromkeys(sorted({name for draft in drafts for name in draft.columns}))
    drafts = [replace(draft, columns=absent | dict(draft.columns)) for draft in drafts]
    extras = {"other_columns": [*absent], **describe_parts(parts)}
    return Reading(tuple(drafts), tuple(refused), n_rows, hidden, extras)


def read_prompt(
    cells: Mapping[str, object], number: int, source: PromptSource, *, seen: Counter[str]
) -> Draft:
    """Read a row; ``seen`` counts the ids made from content, so that a repeated row gets its own id.

    Raises:
        RowError: the row is invalid. The sentence names the reason.
    """
    messages = read_messages(cells, source.prompt)
    if source.answers == source.prompt:
        messages, answers = part_last(messages, source.prompt)
    else:
        answers = read_answers(cells, source.answers)
    turns = tuple(map(as_turn, messages))
    return Draft(
        row=number,
        example_id=numbered(digest_of(*turns, *answers), seen),
        given_id=read_id(cells, source.group) if source.group else "",
        persona="",
        partner="",
        turns=turns,
        answers=answers,
        needs="unknown",
        story_id="",
        split=read_choice(cells, source.split, SPLITS) if source.split else "",
        columns={
            name: cell
            for name, cell in cells.items()
            if name not in (source.prompt, source.answers)
        },
        messages=messages if "role" in messages[0] else (),
    )


def read_messages(cells: Mapping[str, object], column: str) -> tuple[Mapping[str, str], ...]:
    """Return the messages of a prompt, role and content each; of a text one without a role.

    Messages with ``from`` and ``value`` are read as well, as ShareGPT has them.

    Raises:
        RowError: if the cell holds neither.
    """
    prompt = _cell(cells, column)
    if not isinstance(prompt, list):
        return ({"content": clean_text(prompt, name=repr(column))},)
    if not prompt:
        raise RowError(
            f"{column!r} must hold a message, got an empty list; add one or drop the row"
        )
    return tuple(_message(each, f"{column}[{place}]") for place, each in enumerate(prompt))


def part_last(
    messages: tuple[Mapping[str, str], ...], column: str
) -> tuple[tuple[Mapping[str, str], ...], tuple[str, ...]]:
    """Part messages into the prompt and its right answer, which is the last of them.

    Raises:
        RowError: if the assistant has not written the last one, or nothing stands before it.
    """
    *before, last = messages
    if last.get("role") != ASSISTANT or not before:
        got = f"{len(messages)}, the last by {last.get('role', 'nobody')!r}"
        raise RowError(
            f"{column!r} must hold messages of which the last is the {ASSISTANT}'s, got {got}; add the answer or drop the row"
        )
    return tuple(before), (last["content"],)


def without_answer(messages: tuple[Mapping[str, str], ...]) -> tuple[Mapping[str, str], ...]:
    """Leave out a last message by the assistant: it is the answer to those before it, and no part of a prompt."""
    has_answer = len(messages) > 1 and messages[-1].get("role") == ASSISTANT
    return messages[:-1] if has_answer else messages


def as_turn(message: Mapping[str, str]) -> str:
    """Write a message as a line: ``<role>: <content>``, or the content alone."""
    return f"{message['role']}: {message['content']}" if "role" in message else message["content"]


def read_answers(cells: Mapping[str, object], column: str | None) -> tuple[str, ...]:
    """Return the right answers, of a text, a list of texts or a list of one message; none without a column.

    Raises:
        RowError: if there is none, one is empty, or there are several messages.
    """
    if column is None:
        return ()
    answers = _cell(cells, column)
    listed = answers if isinstance(answers, list) else [answers]
    if not listed:
        raise RowError(
            f"{column!r} must hold an answer, got an empty list; add one or drop the row"
        )
    if isinstance(listed[0], Mapping):
        if len(listed) > 1:
            raise RowError(
                f"{column!r} must hold one message, got {len(listed)}; put the others into the prompt"
            )
        return (_message(listed[0], f"{column}[0]")["content"],)
    return tuple(
        clean_text(answer, name=f"{column}[{place}]" if len(listed) > 1 else repr(column))
        for place, answer in enumerate(map(_text_of_number, listed))
    )


def _records(
    file: TextFile, source: PromptSource
) -> Iterator[tuple[int, Callable[[], Mapping[str, object]]]]:
    """Yield the number of each row, counted from 1, and what reads its cells and may raise RowError."""
    named = (source.prompt, source.answers, source.group, source.split)
    columns = [composed(name) for name in named if name is not None]
    if file.path.lower().endswith((".csv", ".tsv")):
        for number, cells in csv_records(file, columns, section="dialogue.data.source"):
            yield number, partial(_of_width, cells, columns)
    elif isinstance(file, DatasetFolder) or file.path.lower().endswith(".parquet"):
        for number, row in enumerate(_arrow_rows(file, columns), start=1):
            yield number, partial(dict, row)
    elif (rows := read_list(file)) is not None:
        for number, entry in enumerate(rows, start=1):
            yield number, partial(parse_line, json.dumps(entry).encode())
    else:
        for number, line in numbered_lines(file):
            yield number, partial(parse_line, line)


def read_list(file: TextFile) -> list[object] | None:
    """Read a file that is one JSON list; None where it is none, such as JSON lines.

    Raises:
        ValueError: if the list is broken.
    """
    with file.open() as content:
        if not content.read(HEAD).removeprefix(BOM).lstrip().startswith(b"["):
            return None
    try:
        with file.open() as content:
            return list(json.loads(content.read().removeprefix(BOM)))
    except ValueError as error:
        raise ValueError(
            f"{file.path} must be a JSON list, got {error}; write it again, or an object on each line"
        ) from error


def _of_width(cells: Mapping[str, object], columns: list[str]) -> Mapping[str, object]:
    check_width(cells, columns)
    return cells


def _arrow_rows(file: TextFile, columns: list[str]) -> list[dict[str, object]]:
    table = read_table(file) if isinstance(file, DatasetFolder) else _read_parquet(file)
    if missing := sorted({*columns} - {*table.column_names}):
        raise ValueError(
            f"{file.path} must have the columns of dialogue.data.source, got none named {missing}; it has {table.column_names}"
        )
    # JSON has no form for bytes, which are left out; dates and decimals become texts.
    kept = [field.name for field in table.schema if not _holds_bytes(field.type)]
    rows: list[dict[str, object]] = table.select(kept).to_pylist()
    return [json.loads(json.dumps(row, default=str)) for row in rows]


def _read_parquet(file: TextFile) -> "pyarrow.Table":
    import pyarrow
    from pyarrow import parquet

    try:
        with file.open() as content:
            return parquet.read_table(content)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{file.path} must be a Parquet file, got {error}; write it again"
        ) from error


def _holds_bytes(kind: "pyarrow.DataType") -> bool:
    """Check whether values of a type are bytes, or have bytes in them, as images have."""
    from pyarrow import types

    parts = (kind.field(place).type for place in range(kind.num_fields))
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return is_bytes or types.is_fixed_size_binary(kind) or any(map(_holds_bytes, parts))


def _cell(cells: Mapping[str, object], column: str) -> object:
    if (cell := cells.get(column)) is None:
        got = "nothing" if column in cells else f"{sorted(map(str, cells))}"
        raise RowError(f"key {column!r} must be there, got {got}; add it, or name another column")
    return cell


def _message(message: object, name: str) -> Mapping[str, str]:
    if isinstance(message, Mapping) and {"from", "value"} <= message.keys():
        sender = str(message["from"])
        message = {"role": SENDERS.get(sender, sender), "content": message["value"]}
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
        raise RowError(
            f"{name} must have role and content, got {json.dumps(message)[:60]}; write both"
        )
    return {key: clean_text(message[key], name=f"{name}.{key}") for key in ("role", "content")}


def _text_of_number(answer: object) -> object:
    """Write a number as people do, every digit of it; pandas writes 3.0 where another row has none, and NaN is no answer."""
    if isinstance(answer, float):
        if not math.isfinite(answer):
            return None
        return str(int(answer)) if answer.is_integer() else repr(answer)
    is_whole = isinstance(answer, int) and not isinstance(answer, bool)
    return str(answer) if is_whole else answer
