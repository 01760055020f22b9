"""A user's file of prompts: CSV, JSON lines and the project's own; what is wrong with it is said with the line."""

from pathlib import Path

import pytest
from kedro.io.core import DatasetError

from grpo_pipeline.datasets.prompts import PromptsDataset


def read(path: Path, text: str | bytes):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return PromptsDataset(filepath=str(path), parameter="dialogue.predict.prompts").load()


def test_csv_json_lines_and_a_table_of_the_project_are_read(tmp_path: Path):
    csv = read(tmp_path / "a.csv", '\ufeffquestion,stories\n"persona: a, b",\n001,"[""x""]"\n')
    assert csv.to_dict("list") == {"question": ["persona: a, b", "001"], "stories": ["", '["x"]']}
    semicolons = read(tmp_path / "b.csv", "question;stories\npersona: a, b;\n")
    assert semicolons.to_dict("list") == {"question": ["persona: a, b"], "stories": [""]}
    lines = read(tmp_path / "a.jsonl", '{"question": "q\u2028r", "stories": ["s"]}\n\n{"question": "t"}\n')
    assert lines["question"].tolist() == ["q\u2028r", "t"]
    assert lines["stories"][0] == ["s"]
    own = read(tmp_path / "b.jsonl", '["question", "row"]\n{"question": "q", "row": 3}\n')
    assert own.to_dict("list") == {"question": ["q"], "row": [3]}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"question": "q"}\n{oops\n', "line 2 must be JSON"),
        ("a.jsonl", '{"question": "q"}\n123\n', r'line 2 must be an object such as \{"question": "…"\}, got 123; correct it'),
        ("a.jsonl", "\n", "must hold prompts, got none; add a row"),
        ("a.csv", "question\n", "must hold prompts, got none; add a row"),
        ("a.csv", b"question\n\xff\n", "must be UTF-8"),
    ],
)
def test_what_is_no_table_of_prompts_is_refused_in_one_sentence(tmp_path: Path, name, text, message):
    with pytest.raises(DatasetError, match=message):
        read(tmp_path / name, text)


def test_a_file_that_is_not_there_is_named_with_its_parameter(tmp_path: Path):
    with pytest.raises(DatasetError, match=r"dialogue.predict.prompts must name a file of prompts, got .*none.csv, which is not"):
        PromptsDataset(filepath=str(tmp_path / "none.csv"), parameter="dialogue.predict.prompts").load()
