"""The notebook runs from its first cell to its last on what a run left, and is committed without outputs."""

import json
import os
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = json.loads((ROOT / "notebooks" / "attention.ipynb").read_text(encoding="utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def run_cells(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Execute the code cells in one namespace, as a kernel that starts in ``folder`` does."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KEDRO_ENV", "smoke")
    monkeypatch.setattr(plt, "show", lambda: None)
    namespace: dict[str, Any] = {}
    for number, cell in enumerate(CODE):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), namespace)
    return namespace


def files(folder: Path) -> set[str]:
    return {os.path.relpath(file, folder) for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts}


def test_it_is_committed_without_outputs() -> None:
    assert CODE
    assert not [cell for cell in CODE if cell["outputs"] or cell["execution_count"] is not None]


@pytest.mark.slow
def test_it_shows_what_a_run_left_and_writes_nothing(project: Path, kedro_run, monkeypatch: pytest.MonkeyPatch) -> None:
    done = kedro_run(project)
    assert done.returncode == 0, done.stderr
    (project / "notebooks").mkdir()
    before = files(project)
    try:
        found = run_cells(project / "notebooks", monkeypatch)
        titles = [axis.get_title() for number in plt.get_fignums() for axis in plt.figure(number).axes]
    finally:
        plt.close("all")
    assert files(project) == before
    stored = sorted((project / "data/08_reporting/attention_smoke/comparison.json").glob("*/comparison.json"))[-1]
    auroc = json.loads(stored.read_text())["arms"]["grpo"]["metrics"]["auroc"]["value"]
    assert found["answer"].loc["auroc", ("grpo", "value")] == auroc
    assert "grpo - supervised" in found["answer"].columns.get_level_values(0)
    assert titles[:3] == ["reward/mean", "supervised/loss", "policy/entropy"]
    assert [title.startswith("label ") for title in titles[3:]] == [True] * found["n"]
