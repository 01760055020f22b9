"""Answers are written row by row; a command that was killed at any row ends with the same bytes."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from grpo_pipeline.tasks import answer_file
from grpo_pipeline.tasks.answer_file import TargetError, write_answers
from grpo_pipeline.tasks.loaded import LoadedModel, load


class KilledError(Exception):
    pass


@pytest.fixture(scope="module")
def molecules(model_folders: dict[str, Path]) -> LoadedModel:
    return load(model_folders["molecules"])


@pytest.fixture(scope="module")
def dialogue(model_folders: dict[str, Path]) -> LoadedModel:
    return load(model_folders["dialogue"])


@pytest.fixture(autouse=True)
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_file, "AT_ONCE", 2)


SIZES = pd.DataFrame({"size": [4, 900, 3, 2, 4, 900, 3], "count": [5, 1, 4, 3, 5, 2, 9], "name": list("abcdefg")})


def write(model: LoadedModel, target: Path, table: pd.DataFrame = SIZES, **given: Any) -> Any:
    return write_answers(model, table, target, options={"seed": 2}, **given)


@pytest.mark.parametrize(("ending", "rows"), [(".jsonl", 2), (".csv", 4), (".smi", 6)])
def test_a_kill_at_any_row_changes_no_byte(molecules: LoadedModel, tmp_path: Path, ending: str, rows: int) -> None:
    def kill(done: int) -> None:
        if done == rows:
            raise KilledError

    whole, target = tmp_path / f"whole{ending}", tmp_path / f"cut{ending}"
    write(molecules, whole)
    with pytest.raises(KilledError):
        write(molecules, target, tell=kill)
    assert not target.exists()
    for name in ("part", "refused"):  # what was under way when the power was cut
        with target.with_name(f"{target.name}.{name}").open("a") as file:
            file.write("half a li")
    told: list[int] = []
    write(molecules, target, tell=told.append)
    assert told[0] == min(rows + 2, len(SIZES))  # none is answered twice
    assert target.read_bytes() == whole.read_bytes()
    refused = [path.with_name(f"{path.name}.refused.csv").read_bytes() for path in (whole, target)]
    assert refused[0] == refused[1]
    assert len(list(tmp_path.iterdir())) == 4  # and nothing is left over


def test_tables_hold_the_row_and_its_answers_and_the_rest_has_a_reason(molecules: LoadedModel, tmp_path: Path) -> None:
    done = write(molecules, tmp_path / "a.csv")
    table = pd.read_csv(tmp_path / "a.csv", keep_default_na=False)
    assert table["name"].tolist() == list("a" * 5 + "c" * 4 + "d" * 3 + "e" * 5 + "g" * 9)
    expected = molecules.predict(SIZES[SIZES["size"] < 5][["size", "count"]], seed=2)
    assert len(table) == len(expected) == done.written
    refused = pd.read_csv(tmp_path / "a.csv.refused.csv")
    assert refused["row"].tolist() == [1, 5]
    assert refused["reason"].str.contains("the largest molecule of the training, got 900").all()
    write(molecules, tmp_path / "a.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["smiles"] for row in lines] == table["smiles"].tolist()


def test_a_file_of_lines_has_what_is_valid_and_the_rest_has_a_reason(molecules: LoadedModel, tmp_path: Path) -> None:
    write(molecules, tmp_path / "a.csv", keep_columns=False)
    table = pd.read_csv(tmp_path / "a.csv", keep_default_na=False)
    assert list(table)[:3] == ["row", "sample", "size"]
    write(molecules, tmp_path / "a.smi")
    assert (tmp_path / "a.smi").read_text().splitlines() == table["smiles"][table["is_valid"]].tolist()
    refused = pd.read_csv(tmp_path / "a.smi.refused.csv")
    lost = table[~table["is_valid"]]
    assert refused.dropna()[["row", "sample"]].astype(int).to_numpy().tolist() == lost[["row", "sample"]].to_numpy().tolist()
    assert refused["row"][refused["sample"].isna()].tolist() == [1, 5]
    assert refused["reason"].notna().all()


def test_nothing_refused_leaves_no_file_of_refusals(dialogue: LoadedModel, tmp_path: Path) -> None:
    table = pd.DataFrame({"question": ["hello", "an apple"], "id": ["NA", "7"]})
    write(dialogue, tmp_path / "deep/a.jsonl", table)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.jsonl"]
    first = json.loads((tmp_path / "deep/a.jsonl").read_text().splitlines()[0])
    assert list(first) == ["question", "id", "reply", "replies"]
    assert (first["id"], first["replies"]) == ("NA", [])


def test_a_file_that_is_there_or_of_another_command_is_refused(molecules: LoadedModel, tmp_path: Path) -> None:
    def kill(done: int) -> None:
        raise KilledError

    write(molecules, tmp_path / "a.csv")
    with pytest.raises(TargetError, match=r"--to must not exist yet, got .*a.csv; choose another name, or delete it"):
        write(molecules, tmp_path / "a.csv")
    with pytest.raises(KilledError):
        write(molecules, tmp_path / "b.csv", tell=kill)
    with pytest.raises(TargetError, match=r"must be of the same model, rows and options, .* delete b.csv.part.json"):
        write_answers(molecules, SIZES, tmp_path / "b.csv", options={"seed": 3})
    with pytest.raises(TargetError, match=r"must be of the same model, rows and options"):
        write(molecules, tmp_path / "b.csv", SIZES[:4])


def test_a_task_without_answers_of_a_line_names_the_endings(dialogue: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"--to must end in .csv or .jsonl for the task dialogue, got a.txt"):
        write(dialogue, tmp_path / "a.txt", pd.DataFrame({"question": ["hello"]}))
