"""The notebooks run from their first cell to their last on what a run left, and are committed without outputs."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from notebook_runs import FOLDER, code_cells, executed, files, titles

NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
ARMS = {"supervised", "grpo"}
EPSILON = 1e-4  # added to the standard deviation of a group


@pytest.mark.parametrize("name", NAMES)
def test_it_is_committed_without_outputs(name: str) -> None:
    cells = code_cells(name)
    assert cells
    assert not [cell for cell in cells if cell["outputs"] or cell["execution_count"] is not None]


def test_the_list_of_notebooks_names_each() -> None:
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"[{name}.ipynb]({name}.ipynb)" not in listed] == []


@pytest.mark.slow
def test_they_show_what_a_run_left_and_write_nothing(smoke_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = smoke_copy
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (project / "notebooks").mkdir()
    before = files(project)
    for name, check in (("attention", check_answer), ("rollouts", check_group), ("mlflow_runs", check_runs)):
        with executed(name, project / "notebooks", monkeypatch) as found:
            check(found, project)
    assert files(project) == before


def check_answer(found: dict[str, Any], project: Path) -> None:
    """The table is the stored comparison; the figures are the curves and one panel per test image."""
    auroc = stored_comparison(project)["arms"]["grpo"]["metrics"]["auroc"]["value"]
    assert found["answer"].loc["auroc", ("grpo", "value")] == auroc
    assert "grpo - supervised" in found["answer"].columns.get_level_values(0)
    assert titles()[:3] == ["reward/mean", "supervised/loss", "policy/entropy"]
    assert [title.startswith("label ") for title in titles()[3:]] == [True] * found["n"]


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
