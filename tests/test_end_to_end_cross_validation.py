"""`kedro run --pipelines cross_validate` as a user meets it: what it writes, prints and tells MLflow."""

import json
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from browser import looks_right
from kedro_processes import finished_runs, run
from told_answers import same_everywhere

KEYS = {f"{arm}.seed0.fold{fold}" for arm in ("supervised", "grpo") for fold in (0, 1)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, make_project) -> tuple[Path, subprocess.CompletedProcess[str]]:
    project = make_project(tmp_path_factory.mktemp("folds") / "project")
    done = run(project, "--pipelines", "cross_validate")
    assert done.returncode == 0, done.stderr
    return project, done


def newest(project: Path, pattern: str) -> Path:
    return sorted((project / "data").glob(pattern))[-1]


def read_result(project: Path) -> dict:
    return json.loads(newest(project, "08_reporting/*/cross_validation/result.json/*/result.json").read_text())


def test_the_folds_are_kept_and_no_patient_is_on_two_sides(finished):
    project, _ = finished
    folds = json.loads(newest(project, "05_model_input/*/folds.json").read_text())
    checked = pd.read_csv(newest(project, "02_intermediate/*/checked.csv"), dtype=str).set_index("core_id")["patient_id"]
    splits = json.loads(newest(project, "03_primary/*/splits.json").read_text())
    assert folds["held_out"] == splits["test"]
    for fold in folds["folds"]:
        sides = [set(checked[part]) for part in (fold["train"], fold["val"], fold["test"], folds["held_out"])]
        assert sum(map(len, sides)) == len(set().union(*sides)) == checked.nunique()


def test_every_core_is_predicted_once_per_arm_or_if_held_out_by_every_model(finished):
    project, _ = finished
    rows = pd.read_csv(
        newest(project, "07_model_output/*/cross_validation/predictions.csv/*/predictions.csv"), dtype={"core_id": str}
    )
    folds = json.loads(newest(project, "05_model_input/*/folds.json").read_text())
    tested = {core: fold["name"] for fold in folds["folds"] for core in fold["test"]}
    for _, arm in rows.groupby("arm"):
        out_of_fold = arm[arm["part"] == "out_of_fold"]
        assert dict(zip(out_of_fold["core_id"], out_of_fold["fold"], strict=True)) == tested
        assert len(out_of_fold) == len(tested)
        assert arm.loc[arm["part"] == "held_out", "core_id"].value_counts().to_dict() == dict.fromkeys(folds["held_out"], 2)


def test_the_result_holds_three_ways_to_pool_and_the_held_out_test_and_is_printed(finished, tmp_path):
    result = read_result(finished[0])
    assert (result["scheme"], result["headline"], result["control"]) == ("kfold", "stratified", "supervised")
    assert result["n"].items() >= {"examples": 30, "clusters": 10, "cluster": "patient_id", "folds": 2}.items()
    assert result["held_out"]["n"] == {"examples": 12, "clusters": 4, "cluster": "patient_id"}
    assert result["arms"]["grpo"]["metrics"]["auroc"].keys() == {"stratified", "pooled", "fold_mean"}
    assert result["held_out"]["differences"]["grpo"]["auroc"].keys() == {"ensemble", "single_models"}
    assert (result["missing"], result["choices"]) == ({}, [])
    project, done = finished
    reports = newest(project, "08_reporting/*/cross_validation/summary.md").parent
    answer = same_everywhere(reports, "cross_validation.html", printed=done.stdout)
    looks_right(reports / "cross_validation.html", tmp_path)
    assert answer.primary.after == result["arms"]["grpo"]["metrics"]["auroc"]["stratified"]["value"]
    assert "<svg" in newest(project, "08_reporting/*/cross_validation/figures/*/figures/00_*.svg").read_text()


def test_each_cell_is_a_child_run_with_its_fold(finished):
    project, _ = finished
    runs = finished_runs(project)
    assert runs.keys() >= KEYS
    assert {runs[key].data.tags["fold"] for key in KEYS} == {"0", "1"}
    (parent,) = (entry for name, entry in runs.items() if name not in KEYS)
    result = read_result(project)
    expected = result["arms"]["grpo"]["metrics"]["reward"]["stratified"]["value"]
    assert parent.data.metrics["mean/grpo/reward"] == pytest.approx(expected)
