"""A model is loaded from a folder alone, in three lines, and answers rows whatever rows stand beside them."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from exported_models import export_models
from PIL import Image

from grpo_pipeline import load
from grpo_pipeline.tasks.loaded import AT_ONCE
from grpo_pipeline.tasks.molecules.prompt_answers import sizes_and_counts
from grpo_pipeline.tasks.serving import serving_of
from grpo_pipeline.tasks.trained_arms import model_in

ROWS: dict[str, list[Any]] = {
    "attention": [f"{n}.png" for n in range(10)],
    "dialogue": [f"persona: i have {n} cats . context: hello" for n in range(10)],
    "molecules": [2, 3, 4, 2, 3, 4, 2, 3, 4, 2],
}
WRONG = {"attention": "none.png", "dialogue": "", "molecules": 900}


@pytest.fixture(autouse=True)
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for name in ROWS["attention"]:
        Image.fromarray(draw.integers(0, 255, (24, 32), np.uint8)).save(name)


@pytest.mark.parametrize("task", ROWS)
def test_three_lines_give_what_the_task_answers_to_one_long_request(model_folders: dict[str, Path], task: str) -> None:
    model = load(model_folders[task])
    answers = model.predict(ROWS[task], seed=3)
    assert len(answers) == len(ROWS[task]) > AT_ONCE
    serving = serving_of(task)
    assert serving is not None
    read = serving.load(model_in(model_folders[task]))
    expected = serving.answer(read, pd.DataFrame({model.required: ROWS[task]}), **dict(serving.options) | {"seed": 3})
    pd.testing.assert_frame_equal(answers, expected)


def test_the_lines_of_the_page_run_as_they_stand(model_folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs/prediction.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "import load" in block]
    for task, folder in model_folders.items():
        shutil.copytree(folder, Path("data/06_models") / task / "grpo")
    Path("new_patients").mkdir()
    shutil.copy("0.png", "new_patients/0001.png")
    with pd.option_context("display.max_columns", None):
        exec(compile(block, "prediction.md", "exec"), {})
    printed = capsys.readouterr().out
    assert all(column in printed for column in ("replies", "prob", "smiles"))


@pytest.mark.parametrize("task", ["attention", "dialogue"])
def test_an_answer_does_not_depend_on_the_order_of_the_rows(model_folders: dict[str, Path], task: str) -> None:
    model, rows = load(model_folders[task]), ROWS[task]
    backwards = model.predict([{model.required: row} for row in rows[::-1]])
    pd.testing.assert_frame_equal(model.predict(rows), backwards[::-1].reset_index(drop=True))


@pytest.mark.parametrize("task", ROWS)
def test_the_first_row_that_cannot_be_answered_is_named(model_folders: dict[str, Path], task: str) -> None:
    rows = ROWS[task].copy()
    rows[9] = WRONG[task]
    with pytest.raises(ValueError, match="^row 9: (?!row)"):
        load(model_folders[task]).predict(rows)


def test_a_row_that_is_refused_takes_no_other_with_it(model_folders: dict[str, Path]) -> None:
    model = load(model_folders["molecules"])
    table = pd.DataFrame({"size": [2, 900, 4]})
    answered = model.answer(table, {})
    assert answered.answers["row"].tolist() == [0, 2]
    assert list(answered.refused) == [1]
    pd.testing.assert_frame_equal(answered.answers.iloc[1:], model.answer(table.iloc[2:3], {}).answers, check_index_type=False)


def test_an_option_that_the_task_does_not_know_is_refused(model_folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="an option of dialogue must be one of seed, samples, got 'sets'; correct it"):
        load(model_folders["dialogue"]).predict(["hello"], sets=3)


def test_a_model_is_found_by_its_arm_its_model_or_its_version(model_folders: dict[str, Path], tmp_path: Path) -> None:
    arm = shutil.copytree(model_folders["molecules"], tmp_path / "arm")
    first = arm / "model/2026-01-01T00.00.00.000Z"
    newer = shutil.copytree(first, arm / "model/2026-02-01T00.00.00.000Z")
    (arm / "model/2026-03-01T00.00.00.000Z").mkdir()  # of a run that was killed
    assert model_in(arm) == model_in(arm / "model") == newer / "model"
    assert model_in(first) == model_in(first / "model") == first / "model"
    with pytest.raises(FileNotFoundError, match=r"must hold a trained model, got none; name the folder of an arm"):
        load(tmp_path)


@pytest.mark.parametrize(("number", "sizes"), [(10, range(3, 6)), (200, range(4, 5)), (2, range(1, 4))])
def test_samples_are_spread_evenly_over_the_sizes(number: int, sizes: range) -> None:
    table = sizes_and_counts(number, sizes)
    counts = table.groupby("size")["count"].sum().reindex(sizes, fill_value=0)
    assert counts.sum() == number
    assert counts.max() - counts.min() <= 1
    assert table["count"].between(1, 64).all()


def test_a_model_reads_columns_and_folders_as_its_data_name_them(tmp_path: Path) -> None:
    named = export_models(
        tmp_path,
        "attention",
        "dialogue",
        prompt_column="ask",
        columns={"image": "file", "region_mask": "where"},
        folders={"image": "kept"},
    )
    images, texts = load(named["attention"]), load(named["dialogue"])
    assert (images.required, texts.required) == ("file", "ask")
    Path("kept").mkdir()
    shutil.move("0.png", "kept/0.png")
    Image.fromarray(np.full((24, 32), 255, np.uint8)).save("all.png")
    theirs = pd.DataFrame({"file": ["0.png", "1.png"], "where": "all.png", "class": "benign"})
    ours = pd.DataFrame({"image": ["kept/0.png", "1.png"], "region_mask": "all.png"})
    pd.testing.assert_frame_equal(images.predict(theirs), images.predict(ours))
    pd.testing.assert_frame_equal(images.predict(["0.png", "1.png"]), images.predict(ours[["image"]]))
    said = texts.predict([{"ask": "hello"}])
    pd.testing.assert_frame_equal(said, texts.predict([{"question": "hello"}]))
    assert [column.name for column in texts.serving.asked(texts.config)] == ["ask", "question", "stories"]
    with pytest.raises(ValueError, match="row 1: .*'none.png' must be a file below"):
        images.predict(["0.png", "none.png"])
