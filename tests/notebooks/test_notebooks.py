"""The notebooks run from their first cell to their last on what a run left; committed are valid files with small outputs."""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from notebook_runs import FOLDER, code_cells, executed, files, titles
from stored_molecules import leave_reports
from stored_replies import leave_results

NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
ARMS = {"supervised", "grpo"}
EPSILON = 1e-4  # added to the standard deviation of a group
LARGEST = 140_000  # bytes of a file


@pytest.mark.parametrize("name", NAMES)
def test_it_is_committed_with_its_outputs(name: str) -> None:
    cells = code_cells(name)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    assert [output for cell in cells for output in cell["outputs"]]
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert len(text) < LARGEST
    assert not re.search(r"/(?:home|root|tmp|Users)/", text)


@pytest.mark.skipif(importlib.util.find_spec("nbformat") is None, reason="nbformat comes with the extra docs")
@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_valid_notebook(name: str) -> None:
    import nbformat

    nbformat.validate(json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")))


def test_there_is_one_notebook_per_question_and_the_list_names_each() -> None:
    assert NAMES == ["compare_runs", "grpo_on_a_toy", "own_reward", "read_a_run", "rollouts"]
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"[{name}.ipynb]({name}.ipynb)" not in listed] == []


def test_the_toy_learns_and_needs_no_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(code_cells("grpo_on_a_toy")) == 10
    with executed("grpo_on_a_toy", tmp_path, monkeypatch) as found:
        assert found["reward"][:10].mean() < 0.3
        assert found["reward"][-10:].mean() > 0.8
        assert found["share"] > 0.8
        assert found["hasty"][-10:].mean() < found["reward"][-10:].mean()
    assert "loss 0.0000" in capsys.readouterr().out
    assert files(tmp_path) == set()


@pytest.mark.parametrize(("task", "leave"), [("dialogue", leave_results), ("molecules", leave_reports)])
def test_a_run_of_each_task_is_read(
    task: str, leave: Any, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = leave(project)
    (project / "notebooks").mkdir()
    monkeypatch.setenv("TASK", task)
    before = files(project)
    with executed("read_a_run", project / "notebooks", monkeypatch) as found:
        arm, control = comparison["baseline_arm"], comparison["control"]
        for metric in ("reward",):
            entry = comparison["differences"][arm][metric]
            assert found["answer"].loc[metric, (arm, "value")] == comparison["arms"][arm]["metrics"][metric]["value"]
            assert found["answer"].loc[metric, (f"{arm} - {control}", "ci95")] == entry["ci95"]
        assert found["beside"].loc["start", "reward"] == comparison["baselines"]["start"]["metrics"]["reward"]["value"]
        assert titles()[1:] == ["reward/mean", "supervised/loss", "policy/entropy"]
    assert comparison["summary"][0] in capsys.readouterr().out
    assert files(project) == before


def test_a_reward_of_ones_own_is_applied_to_drawn_groups(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_results(project)
    (project / "notebooks").mkdir()
    before = files(project)
    with executed("own_reward", project / "notebooks", monkeypatch) as found:
        rows = found["rollouts"].set_index("sample")
        assert list(rows["mine"]) == [0.0, 1.0]  # an empty reply has none of the words, the right one has all
        assert rows["my_advantage"].to_numpy() == pytest.approx(np.array([-1, 1]) * 0.5 / (np.sqrt(0.5) + EPSILON))
        assert found["earned"]["the right answer"] == 1.0
        assert found["earned"]["nothing"] == 0.0
    assert "groups that tie: 0.00 of 1 under mine" in capsys.readouterr().out
    assert files(project) == before


@pytest.mark.slow
def test_they_show_what_a_run_left_and_write_nothing(smoke_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = smoke_copy
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (project / "notebooks").mkdir()
    before = files(project)
    for name, check in (("read_a_run", check_answer), ("rollouts", check_group), ("compare_runs", check_runs)):
        with executed(name, project / "notebooks", monkeypatch) as found:
            check(found, project)
    assert files(project) == before


def check_answer(found: dict[str, Any], project: Path) -> None:
    """The table is the stored comparison; the figures are the differences and the curves."""
    auroc = stored_comparison(project)["arms"]["grpo"]["metrics"]["auroc"]["value"]
    assert found["answer"].loc["auroc", ("grpo", "value")] == auroc
    assert "grpo - supervised" in found["answer"].columns.get_level_values(0)
    assert titles() == ["grpo - supervised", "reward/mean", "supervised/loss", "policy/entropy"]


def check_group(found: dict[str, Any], project: Path) -> None:
    """The advantages are the standardised rewards of one group of a positive test core; the panels show that core."""
    group = found["group"]
    assert set(group["core_id"]) == {found["CORE"]}
    assert set(group["label"]) == {1}
    rewards = group["reward"].to_numpy()
    assert np.allclose(group["advantage"], (rewards - rewards.mean()) / (rewards.std(ddof=1) + EPSILON))
    assert np.allclose(rewards, group["reward_class"])
    assert found["CORE"] in titles()[0]
    assert len(found["probe"]["core_id"].unique()) > 1


def check_runs(found: dict[str, Any], project: Path) -> None:
    """Both arms are found, and the difference is the stored comparison's."""
    assert set(found["overview"]["arm"]) == ARMS == set(found["curves"])
    assert [len(curve) for curve in found["curves"].values()] == [len(metric_rows(project, arm)) for arm in found["curves"]]
    entry = stored_comparison(project)["differences"]["grpo"]["auroc"]
    row = found["differences"].set_index("metric").loc["auroc"]
    assert row["difference"] == pytest.approx(entry["value"])
    # Of a few clusters there is no interval.
    assert [row["low"], row["high"]] == (entry["ci95"] or [None, None])
    assert "attention.arm.algorithm.losses.policy.kind" in found["varying"]
    assert "attention.training.batch_size" not in found["varying"]


def stored_comparison(project: Path) -> dict[str, Any]:
    stored = sorted((project / "data/08_reporting/attention_smoke/comparison.json").glob("*/comparison.json"))[-1]
    document: dict[str, Any] = json.loads(stored.read_text())
    return document


def metric_rows(project: Path, arm: str) -> pd.DataFrame:
    rows = pd.read_json(project / f"data/07_model_output/attention_smoke/{arm}/metric_rows.jsonl", lines=True)
    return rows[rows["split"] == "train"]
