"""Plain prompts and answers become examples without a persona or a story, from three kinds of files."""

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from tiny_dialogue import ROOT, data_params, retrieval_params

from grpo_pipeline.tasks.dialogue.data.checks import check_dialogues
from grpo_pipeline.tasks.dialogue.data.dataset_folder import DatasetFolder
from grpo_pipeline.tasks.dialogue.data.examples import build_examples
from grpo_pipeline.tasks.dialogue.data.params import DialogueSplitParams, PromptSource
from grpo_pipeline.tasks.dialogue.data.prompt_rows import read_prompts
from grpo_pipeline.tasks.dialogue.data.splits import split_personas
from grpo_pipeline.tasks.dialogue.data.story_index import index_stories
from grpo_pipeline.tasks.dialogue.data.text_files import DialogueFiles
from grpo_pipeline.tasks.text_lines import TextFile

ROWS = [{"prompt": f"{a}+1=", "answers": str(a + 1), "level": f"l{a % 4}"} for a in range(12)]

TALK = [{"role": "system", "content": "be short"}, {"role": "user", "content": "2+2?"}]
FOUR = {"role": "assistant", "content": "4"}
SHARED = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]


def file_of(rows: list[Any], suffix: str = "jsonl") -> TextFile:
    """Write the rows as the suffix says; bytes among JSON lines stay what they are."""
    if suffix == "jsonl":
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        return TextFile(f"{ROOT}/q.jsonl", b"\n".join(lines))
    content, table = io.BytesIO(), pd.DataFrame(rows)
    table.to_csv(content, index=False) if suffix == "csv" else table.to_parquet(content)
    return TextFile(f"{ROOT}/q.{suffix}", content.getvalue())


def source(**changes: Any) -> PromptSource:
    return PromptSource(kind="prompts", **changes)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_three_kinds_of_files_hold_the_same_prompts(suffix: str) -> None:
    reading = read_prompts(file_of(ROWS, suffix), source(group="level"))
    assert [(d.turns, d.answers, d.given_id) for d in reading.drafts] == [
        ((r["prompt"],), (r["answers"],), r["level"]) for r in ROWS
    ]
    assert (reading.n_rows, reading.refused, len({d.example_id for d in reading.drafts})) == (12, (), 12)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_every_other_column_of_a_row_is_kept(suffix: str) -> None:
    rows = [row | {"kind": None if place else "a"} for place, row in enumerate(ROWS)]
    reading = read_prompts(file_of(rows, suffix), source(group="level"))
    absent = "" if suffix == "csv" else None
    wanted = [{"kind": row["kind"] or absent, "level": row["level"]} for row in rows]
    assert [draft.columns for draft in reading.drafts] == wanted
    assert reading.extras == {"other_columns": ["kind", "level"]}


def test_a_column_that_a_row_lacks_is_none_and_values_keep_their_kind() -> None:
    rows = [{"prompt": "q", "answers": "a", "n": 3, "tags": ["x", 1.5]}, {"prompt": "r", "answers": "b"}]
    drafts = read_prompts(file_of(rows), source()).drafts
    assert [draft.columns for draft in drafts] == [{"n": 3, "tags": ["x", 1.5]}, {"n": None, "tags": None}]


def test_dates_of_a_parquet_file_are_texts_and_bytes_are_left_out() -> None:
    when, picture = pd.Timestamp("2024-05-06"), {"bytes": b"x", "path": "p"}
    rows = [{"prompt": "q", "answers": "a", "when": when, "picture": picture, "raw": b"y"}]
    [draft] = read_prompts(file_of(rows, "parquet"), source()).drafts
    assert draft.columns == {"when": "2024-05-06 00:00:00"}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_messages_are_turns_with_their_role_and_answers_may_be_several_or_numbers(suffix: str) -> None:
    talk = [{"role": "system", "content": "be short"}, {"role": "user", "content": "2+2?"}]
    rows = [{"messages": talk, "right": ["4", "four"]}, {"messages": talk[1:], "right": ["4"]}]
    first, second = read_prompts(file_of(rows, suffix), source(prompt="messages", answers="right")).drafts
    assert (first.turns, first.answers) == (("system: be short", "user: 2+2?"), ("4", "four"))
    assert second.turns == ("user: 2+2?",)


@pytest.mark.parametrize(
    ("row", "columns", "turns"),
    [
        ({"messages": [*TALK, FOUR]}, {"prompt": "messages", "answers": "messages"}, ("system: be short", "user: 2+2?")),
        ({"talk": SHARED, "n": 1}, {"prompt": "talk", "answers": "talk"}, ("user: 2+2?",)),
        ({"prompt": TALK[1:], "completion": [FOUR]}, {"prompt": "prompt", "answers": "completion"}, ("user: 2+2?",)),
    ],
    ids=["messages", "ShareGPT", "prompt and completion"],
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_the_answer_may_be_a_message(row: dict[str, Any], columns: dict[str, str], turns: tuple[str, ...], suffix: str) -> None:
    [draft] = read_prompts(file_of([row], suffix), source(**columns)).drafts
    assert (draft.turns, draft.answers) == (turns, ("4",))
    assert [each["content"] for each in draft.messages] == [turn.partition(": ")[2] for turn in turns]
    assert set(draft.columns) == {*row} - {*columns.values()}


@pytest.mark.parametrize(
    ("messages", "got"),
    [(TALK, "2, the last by 'user'"), ([FOUR], "1, the last by 'assistant'"), ("2+2?", "1, the last by 'nobody'")],
)
def test_a_row_whose_last_message_is_no_answer_is_refused(messages: Any, got: str) -> None:
    reading = read_prompts(file_of([{"m": messages}, {"m": [*TALK, FOUR]}]), source(prompt="m", answers="m"))
    assert [entry["reason"] for entry in reading.refused] == [
        f"'m' must hold messages of which the last is the assistant's, got {got}; add the answer or drop the row"
    ]
    assert len(reading.drafts) == 1


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_numbers_keep_every_digit_and_nan_is_no_answer(suffix: str) -> None:
    whole = read_prompts(file_of([{"prompt": "q", "answers": n} for n in (4, 2**53 + 1)], suffix), source())
    assert [draft.answers for draft in whole.drafts] == [("4",), ("9007199254740993",)]
    parts = read_prompts(file_of([{"prompt": "q", "answers": x} for x in (3.0, 0.1, float("nan"))], suffix), source())
    assert [draft.answers for draft in parts.drafts] == [("3",), ("0.1",)]
    assert [entry["row"] for entry in parts.refused] == [3]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answers": "a"}, "key 'prompt' must be there, got ['answers']; add it, or name another column"),
        ({"prompt": None, "answers": "a"}, "key 'prompt' must be there, got nothing"),
        ({"prompt": " ", "answers": "a"}, "'prompt' must not be empty"),
        ({"prompt": 3, "answers": "a"}, "'prompt' must be text, got int"),
        ({"prompt": [], "answers": "a"}, "'prompt' must hold a message, got an empty list"),
        ({"prompt": [{"role": "user"}], "answers": "a"}, "prompt[0] must have role and content, got {\"role\": \"user\"}"),
        ({"prompt": [{"role": "user", "content": ""}], "answers": "a"}, "prompt[0].content must not be empty"),
        ({"prompt": "q"}, "key 'answers' must be there"),
        ({"prompt": "q", "answers": []}, "'answers' must hold an answer, got an empty list"),
        ({"prompt": "q", "answers": ["a", ""]}, "answers[1] must not be empty"),
        ({"prompt": "q", "answers": True}, "'answers' must be text, got bool"),
        ({"prompt": "q", "answers": [FOUR, FOUR]}, "'answers' must hold one message, got 2; put the others into the prompt"),
        (b"{", "the line must be JSON"),
    ],
)  # fmt: skip
def test_bad_rows_are_listed_and_the_others_read(row: Any, reason: str) -> None:
    reading = read_prompts(file_of([ROWS[0], row]), source())
    assert [entry["row"] for entry in reading.refused] == [2]
    assert reading.refused[0]["reason"].startswith(reason)
    assert len(reading.drafts) == 1


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_without_a_column_is_refused_with_what_it_has(suffix: str) -> None:
    with pytest.raises(ValueError, match=r"must have the columns of dialogue.data.source, got none named \['answer'\]; it has"):
        read_prompts(file_of(ROWS, suffix), source(answers="answer"))
    with pytest.raises(ValueError, match="must be a Parquet file, got"):
        read_prompts(TextFile(f"{ROOT}/q.parquet", b"no table"), source())


def save_data_set(folder: Path, *shards: list[Any]) -> DatasetFolder:
    """Write the shards as the library datasets does, which is none of ours: Arrow streams, and their names as JSON."""
    folder.mkdir(parents=True)
    names = [f"data-{place:05d}-of-{len(shards):05d}.arrow" for place in range(len(shards))]
    for name, rows in zip(names, shards, strict=True):
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return DatasetFolder(str(folder))


def test_a_saved_data_set_is_read_in_the_order_of_its_files(tmp_path: Path) -> None:
    folder = save_data_set(tmp_path / "set", ROWS[:5], ROWS[5:])
    reading, expected = read_prompts(folder, source(group="level")), read_prompts(file_of(ROWS), source(group="level"))
    assert (reading.drafts, reading.extras) == (expected.drafts, expected.extras)
    other = save_data_set(tmp_path / "other", ROWS[:5], ROWS[5:])
    assert folder.digest() == other.digest() != save_data_set(tmp_path / "less", ROWS[:5]).digest()


def test_several_saved_data_sets_are_the_splits(tmp_path: Path) -> None:
    parts = {"train": ROWS[:4], "validation": [*ROWS[4:6], {"prompt": "", "answers": "x"}], "test": ROWS[6:]}
    for name, rows in parts.items():
        save_data_set(tmp_path / name, rows)
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))
    reading = read_prompts(DatasetFolder(str(tmp_path)), source())
    assert [draft.split for draft in reading.drafts] == ["train"] * 4 + ["val"] * 2 + ["test"] * 6
    assert [(entry["file"], entry["row"]) for entry in reading.refused] == [(f"{tmp_path}/validation", 3)]
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    reading = read_prompts(DatasetFolder(str(tmp_path)), source())
    assert reading.extras["splits_by_part"] == {"train": "train+val", "test": "test"}
    for names, got in ((["train", "extra"], "extra"), (["test"], "test")):
        (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": names}))
        with pytest.raises(ValueError, match=rf"must have a part train and others of .*, got \['{got}'\]"):
            read_prompts(DatasetFolder(str(tmp_path)), source())


def test_a_folder_that_is_no_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a data set that save_to_disk wrote, got a folder without state.json"):
        read_prompts(DatasetFolder(str(tmp_path)), source())
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    with pytest.raises(ValueError, match=r"a.arrow must be an Arrow stream, got"):
        read_prompts(DatasetFolder(str(tmp_path)), source())
    (tmp_path / "a.arrow").write_bytes(b"no table")
    with pytest.raises(ValueError, match=r"a.arrow must be an Arrow stream, got"):
        read_prompts(DatasetFolder(str(tmp_path)), source())
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(ValueError, match=r"state.json must be JSON with '_data_files', got KeyError"):
        read_prompts(DatasetFolder(str(tmp_path)), source())


def prepared(rows: list[Any], **changes: Any) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    params = data_params(source={"kind": "prompts", **changes}, max_question_bytes=40)
    checked, stories, quarantine, report = check_dialogues(DialogueFiles(ROOT, file_of(rows), None), {}, params)
    split = DialogueSplitParams.model_validate({"seed": 0, "fractions": {"train": 0.5, "val": 0.25, "test": 0.25}})
    index = index_stories(stories, retrieval_params())
    examples = build_examples(index, checked, stories, split_personas(checked, split), retrieval_params())
    return examples.table, quarantine, report


def test_they_become_model_input_without_stories_and_the_prompt_is_what_is_read() -> None:
    table, _, report = prepared(ROWS)
    assert set(table["question"]) == {row["prompt"] for row in ROWS}
    assert table["story_ids"].tolist() == [[]] * 12
    assert {*table["columns"]} == {f'{{"level": "l{n}"}}' for n in range(4)}
    assert (set(table["persona"]), table["subject_id"].nunique(), report["stories"]) == ({""}, 12, 0)
    assert table["split"].value_counts().to_dict() == {"train": 6, "val": 3, "test": 3}


def test_a_group_is_never_divided_and_a_named_split_is_taken() -> None:
    table, _, _ = prepared(ROWS, group="level")
    assert table.groupby("subject_id")["split"].nunique().tolist() == [1, 1, 1, 1]
    parts = {"l0": "train", "l1": "val", "l2": "test", "l3": "train"}
    named = [row | {"part": parts[row["level"]]} for row in ROWS]
    table, _, _ = prepared(named, group="level", split="part")
    assert table.set_index("question")["split"].to_dict() == {row["prompt"]: row["part"] for row in named}
    wrong = [*named, ROWS[0] | {"prompt": "9+9=", "part": "test"}]
    _, quarantine, _ = prepared(wrong, group="level", split="part")
    assert quarantine["reason"].str.contains("persona or group 'l0' must be in one split, got").all()
    assert len(quarantine) == 4


def test_a_long_prompt_loses_its_beginning_and_whole_messages_first() -> None:
    talk = [{"role": "user", "content": "x" * 30}, {"role": "user", "content": "short"}]
    long = [{"role": "user", "content": "b" * 60 + "end"}]
    rows = [
        *ROWS,
        {"prompt": "a" * 50 + "end", "answers": "y"},
        {"prompt": talk, "answers": "z"},
        {"prompt": long, "answers": "w"},
    ]
    table, _, report = prepared(rows)
    messages = {answers[0]: json.loads(kept) for answers, kept in zip(table["answers"], table["messages"], strict=True)}
    assert (messages["y"], messages["z"]) == ([], talk[1:])
    assert messages["w"] == [{"role": "user", "content": "b" * 37 + "end"}]
    by_answer = {answers[0]: question for answers, question in zip(table["answers"], table["question"], strict=True)}
    assert (by_answer["y"], by_answer["z"]) == ("a" * 37 + "end", "user: short")
    assert report["shortened"]["questions"] == 3
