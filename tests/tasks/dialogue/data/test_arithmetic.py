"""Sums that are written first: right, without repeats, and never trained on where the same two numbers are tested."""

import re
from typing import Any

import pytest
from pydantic import ValidationError
from tiny_dialogue import ROOT, data_params

from grpo_pipeline.tasks.dialogue.data.arithmetic import write_problems
from grpo_pipeline.tasks.dialogue.data.checks import check_dialogues
from grpo_pipeline.tasks.dialogue.data.params import ArithmeticSource, DialogueSplitParams
from grpo_pipeline.tasks.dialogue.data.splits import split_personas
from grpo_pipeline.tasks.dialogue.data.text_files import DialogueFiles, dump_lines
from grpo_pipeline.tasks.dialogue.pipelines.nodes import generate_dialogues
from grpo_pipeline.tasks.dialogue.scores.number import number
from grpo_pipeline.tasks.text_lines import TextFile

SOURCE = {"kind": "arithmetic", "seed": 3, "problems": 90, "largest": 9, "word_share": 0.4}


def source(**changes: Any) -> ArithmeticSource:
    return ArithmeticSource.model_validate(SOURCE | changes)


def test_problems_follow_from_the_seed_and_have_the_right_answers() -> None:
    rows = write_problems(source())
    assert rows == write_problems(source()) != write_problems(source(seed=4))
    numbers = [[int(part) for part in re.findall(r"\d+", str(row["prompt"]))] for row in rows]
    assert [row["answers"] for row in rows] == [str(sum(pair)) for pair in numbers]
    assert len({tuple(pair) for pair in numbers}) == len(rows) == 90
    assert max(max(pair) for pair in numbers) == 9
    # 3+5 and 5+3 are one pair, and no two others are.
    same = {(*sorted(pair), row["pair"]) for pair, row in zip(numbers, rows, strict=True)}
    assert len(same) == len({tuple(sorted(pair)) for pair in numbers}) == len({row["pair"] for row in rows})
    told = sum(" has " in str(row["prompt"]) for row in rows)
    assert 90 * 0.2 < told < 90 * 0.6
    assert number([str(row["answers"]) for row in rows], [[str(sum(pair))] for pair in numbers], tolerance=0.0).all()


def test_more_problems_than_pairs_of_numbers_are_refused() -> None:
    assert len(write_problems(source(problems=100))) == 100
    with pytest.raises(ValidationError, match="problems must be at most 100 for numbers up to 9, got 101"):
        source(problems=101)


def test_the_written_file_is_read_and_a_pair_is_never_divided() -> None:
    params = data_params(source=SOURCE)
    files, generated = generate_dialogues(None, params)  # type: ignore[arg-type]
    assert (list(files), generated["examples"]) == (["examples.jsonl"], 90)
    folder = DialogueFiles(ROOT, TextFile(f"{ROOT}/examples.jsonl", files["examples.jsonl"]), None)
    checked, _, quarantine, _ = check_dialogues(folder, generated, params)
    assert len(quarantine) == 0
    split = DialogueSplitParams.model_validate({"seed": 0, "fractions": {"train": 0.5, "val": 0.25, "test": 0.25}})
    split_of = {name: part for part, names in split_personas(checked, split).items() for name in names}
    pairs = checked.groupby("subject_id")["example_id"].agg(lambda names: len({split_of[name] for name in names}))
    assert (pairs == 1).all()
    assert len(pairs) < len(checked)  # 3+5 and 5+3 are one
    with pytest.raises(
        ValueError, match="must hold the 90 generated examples while dialogue.data.source.kind is arithmetic, got 1"
    ):
        check_dialogues(DialogueFiles(ROOT, TextFile("x", dump_lines([{"prompt": "1+1=", "answers": "2", "pair": "1 1"}])), None),
                        generated, params)  # fmt: skip
