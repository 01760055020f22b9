"""`grpo predict` and `grpo sample` with a model that is named by its folder, which need no project."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from grpo_pipeline.cli import cli
from grpo_pipeline.tasks.loaded import load


def call(*args: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_questions_of_a_file_are_answered_and_the_empty_one_is_listed(model_folders: dict[str, Path]) -> None:
    rows = [{"prompt": "hello", "id": 1}, {"prompt": " ", "id": 2}, {"prompt": "an apple", "id": 3}]
    Path("asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = ("predict", "--task", "dialogue", "--model", model_folders["dialogue"], "asked.jsonl", "--to", "said.jsonl")
    assert "must have a column question, got prompt, id; name it: --column question=<column>" in call(*given).output
    done = call(*given, "--column", "question=prompt", "--option", "samples=2", "--seed", "4")
    assert done.exit_code == 0, done.output
    assert "2 answers are in" in done.output
    assert "1 are refused, with the reason in" in done.output
    said = [json.loads(line) for line in Path("said.jsonl").read_text().splitlines()]
    expected = load(model_folders["dialogue"]).predict(["hello", "an apple"], samples=2, seed=4)
    assert [(row["id"], row["reply"], row["replies"]) for row in said] == list(
        zip([1, 3], expected["reply"], expected["replies"], strict=True)
    )


@pytest.mark.parametrize("form", ["table", "folder"])
def test_images_are_scored_from_a_table_elsewhere_or_a_folder(model_folders: dict[str, Path], form: str) -> None:
    draw = np.random.default_rng(0)
    for name in ("b", "a"):
        Path("mine/deep").mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (24, 32), np.uint8)).save(f"mine/deep/{name}.png")
    Path("mine/index.csv").write_text("image\ndeep/a.png\ndeep/b.png\n")
    rows = "mine/index.csv" if form == "table" else "mine"
    done = call("predict", "--task", "attention", "--model", model_folders["attention"], rows, "--to", "out/scores.csv")
    assert done.exit_code == 0, done.output
    scores = pd.read_csv("out/scores.csv")
    assert scores["image"].tolist() == ["deep/a.png", "deep/b.png"]
    expected = load(model_folders["attention"]).predict(["mine/deep/a.png", "mine/deep/b.png"])
    assert scores["prob"].tolist() == pytest.approx(expected["prob"].tolist(), rel=1e-12)


def test_samples_are_a_line_each_and_a_second_command_does_not_overwrite(model_folders: dict[str, Path]) -> None:
    given = ("sample", "--task", "molecules", "--model", model_folders["molecules"], "-n", "30", "--size", "2:4", "--to", "a.smi")
    done = call(*given)
    assert done.exit_code == 0, done.output
    refused = Path("a.smi.refused.csv")
    lost = len(pd.read_csv(refused)) if refused.exists() else 0
    assert len(Path("a.smi").read_text().splitlines()) + lost == 30
    assert "--to must not exist yet" in call(*given).output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("sample --task molecules -n 3 --size 4:2 --to a.smi", "--size must be FROM:TO or a number, got '4:2'; write 20:30, say"),
        ("sample --task molecules -n 3 --size few --to a.smi", "--size must be FROM:TO or a number, got 'few'"),
        ("sample --task dialogue -n 3 --size 4 --to a.csv", "must be one whose models draw samples of a size, got dialogue"),
        ("sample --task attention -n 3 --size 4 --to a.csv --model {molecules}", "--task must be that of the model, molecules"),
        ("predict --task paintings x.csv --to a.csv", "--task must be one of attention, dialogue, molecules, got 'paintings'"),
        ("predict --task molecules x.csv --to out", "--to must end in .jsonl or .csv for the task molecules, got out"),
        (
            "predict --task molecules x.csv --to a.csv --option sets",
            "--option must be KEY=NUMBER, got sets; write samples=4, say",
        ),
        ("predict --task molecules x.csv --to a.csv --option a=-1", "--option must be KEY=NUMBER, got '-1'"),
        ("predict --task molecules x.csv --to a.csv --option a=1", "an option of molecules must be one of seed, got 'a'"),
        ("predict --task molecules x.csv --to a.csv --column s=t", "--column must name a column of"),
        ("predict --task molecules . --to a.csv", "ROWS must be a file, or a folder of images for a task that reads them"),
        ("predict --task molecules x.csv --to a.csv --model .", "must hold a trained model, got none; name the folder of an arm"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(model_folders: dict[str, Path], args: str, message: str) -> None:
    Path("x.csv").write_text("size\n3\n")
    words = args.format(**model_folders).split()
    task = words[words.index("--task") + 1]
    if "--model" not in words and task in model_folders:
        words += ["--model", str(model_folders[task])]
    done = call(*words)
    assert done.exit_code in (1, 2)
    assert message in done.output
    assert isinstance(done.exception, SystemExit)


def test_outside_of_a_project_the_last_run_is_asked_for_by_a_remedy() -> None:
    done = call("sample", "--task", "molecules", "-n", "3", "--size", "4", "--to", "a.smi")
    assert "the current folder must lie in a project, got" in done.output
    assert "make one here: grpo init" in done.output
