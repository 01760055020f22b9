"""Numbers are found wherever they lie, a changed one is named, and a rename is told from a change."""

import json
import math
import shutil
import sqlite3
from pathlib import Path

import artefacts
import numpy as np
import pytest
import torch
from artefacts import compare, read_artefacts
from safetensors.torch import save_file


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small copy of the files that a run of one arm leaves."""
    data = tmp_path / "project" / "data"
    model = data / "06_models/task/arm/model/2026-01-02T03.04.05.678Z/model"
    model.mkdir(parents=True)
    save_file(
        {"head.time.weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2, dtype=torch.bfloat16)},
        model / "m.safetensors",
    )
    out = data / "07_model_output/task/arm"
    out.mkdir(parents=True)
    rows = [{"step": step, "loss": 1.0 / (step + 1), "step_seconds": 0.5, "code": "abc"} for step in range(3)]
    (out / "metric_rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (out / "predictions.csv").write_text("id,rule,prob,std\nP1,greedy,0.25,\nP2,greedy,0.5,0.125\n")
    report = data / "08_reporting/task/comparison.json/2026-01-02T03.04.05.678Z"
    report.mkdir(parents=True)
    content = {"control": "a", "commit": "abc", "arms": {"a": {"auroc": {"value": 0.5, "ci95": [0.25, 0.75]}}}, "seconds": 3.0}
    (report / "comparison.json").write_text(json.dumps(content))
    with sqlite3.connect(data.parent / "mlflow.db") as store:
        store.execute("CREATE TABLE runs (run_uuid, name, start_time)")
        store.execute("CREATE TABLE metrics (run_uuid, key, step, value, is_nan)")
        store.execute("INSERT INTO runs VALUES ('u1', 'task.arm', 1)")
        store.executemany("INSERT INTO metrics VALUES ('u1', 'loss', ?, ?, ?)", [(0, 1.0, 0), (1, 0.0, 1)])
    return data.parent


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def only(project: Path, pattern: str) -> Path:
    (found,) = (project / "data").rglob(pattern)
    return found


def verdicts(before: Path, after: Path) -> dict[str, str]:
    """The kinds that are not equal."""
    one, other = read_artefacts(before), read_artefacts(after)
    found = {kind: compare(one[kind], other[kind]) for kind in artefacts.KINDS}
    return {
        kind: f"{difference.verdict}: {difference.detail}" for kind, difference in found.items() if difference.verdict != "equal"
    }


@pytest.fixture
def changed(project: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(project, tmp_path / "changed"))


def test_every_kind_is_read(project: Path) -> None:
    found = read_artefacts(project)
    assert {kind: len(values) for kind, values in found.items()} == {
        "weights": 2, "metric rows": 1, "comparison": 3, "tables": 2, "reports": 0, "MLflow": 1, "data": 0,
    }  # fmt: skip
    assert np.isnan(found["MLflow"]["task.arm loss"][1, 1])


def test_the_same_numbers_at_another_time_with_other_code_are_equal(project: Path, changed: Path) -> None:
    for folder in sorted((changed / "data").rglob("2026-*")):
        folder.rename(folder.with_name("2027-02-03T00.00.00.000Z"))
    edit(only(changed, "comparison.json/*/comparison.json"), '"commit": "abc"', '"commit": "def"')
    edit(only(changed, "comparison.json/*/comparison.json"), '"seconds": 3.0', '"seconds": 4.0')
    edit(only(changed, "metric_rows.jsonl"), '"step_seconds": 0.5', '"step_seconds": 0.75')
    assert verdicts(project, changed) == {}


def test_moved_files_and_renamed_columns_keys_and_tensors_are_renamed(project: Path, changed: Path) -> None:
    out = changed / "data/07_model_output/task"
    out.rename(changed / "data/07_model_output/other")
    edit(only(changed, "predictions.csv"), "rule,prob", "baseline,probability")
    edit(only(changed, "metric_rows.jsonl"), '"loss"', '"total"')
    edit(only(changed, "comparison.json/*/comparison.json"), '"auroc"', '"area"')
    weights = only(changed, "m.safetensors")
    save_file({"tail.weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2, dtype=torch.bfloat16)}, weights)
    assert {kind: words.partition(":")[0] for kind, words in verdicts(project, changed).items()} == {
        "weights": "renamed", "metric rows": "renamed", "comparison": "renamed", "tables": "renamed",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "old", "new", "kind", "said"),
    [
        ("predictions.csv", "0.125", "0.1250000001", "tables", "std[1]: np.float64(0.125) -> np.float64(0.1250000001)"),
        ("metric_rows.jsonl", '"loss": 0.5,', '"loss": 0.51,', "metric rows", "loss[1, 1]"),
        ("metric_rows.jsonl", '"step": 2', '"step": 3', "metric rows", "loss[2, 0]"),
        ("comparison.json/*/comparison.json", "0.75", "0.76", "comparison", "arms.a.auroc.ci95.1[0]"),
        ("comparison.json/*/comparison.json", "[0.25, 0.75]", "[0.75, 0.25]", "comparison", "2 values"),
        ("comparison.json/*/comparison.json", ", 0.75", "", "comparison", "only before:"),
    ],
)
def test_a_changed_number_is_named(project: Path, changed: Path, pattern: str, old: str, new: str, kind: str, said: str) -> None:
    edit(only(changed, pattern), old, new)
    found = verdicts(project, changed)
    assert found.keys() == {kind}
    assert found[kind].startswith("differs:")
    assert said in found[kind]


def test_a_table_in_another_format_is_renamed(project: Path, changed: Path) -> None:
    table = only(changed, "predictions.csv")
    rows = [["id", "rule", "prob", "std"], {"id": "P1", "rule": "greedy", "prob": 0.25, "std": math.nan}]
    rows.append({"id": "P2", "rule": "greedy", "prob": 0.5, "std": 0.125})
    table.with_suffix(".jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    table.unlink()
    assert verdicts(project, changed)["tables"].startswith("renamed")
    edit(only(changed, "predictions.jsonl"), "0.125", "0.126")
    assert verdicts(project, changed)["tables"].startswith("differs")


def test_one_bit_of_a_weight_under_another_name_differs(project: Path, changed: Path) -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    tensor[1, 2] = torch.nextafter(tensor[1, 2], torch.tensor(9.0))
    save_file({"tail.weight": tensor, "bias": torch.ones(2, dtype=torch.bfloat16)}, only(changed, "m.safetensors"))
    assert verdicts(project, changed).keys() == {"weights"}
    assert "1 names gone, 1 new; only before:" in verdicts(project, changed)["weights"]


def test_a_metric_that_the_store_lacks_differs(project: Path, changed: Path) -> None:
    with sqlite3.connect(changed / "mlflow.db") as store:
        store.execute("DELETE FROM metrics WHERE step = 1")
    assert verdicts(project, changed) == {"MLflow": "differs: 1 values; task.arm loss: float64[2, 2] -> float64[1, 2]"}
