"""The tasks of the project stand on what a stranger's package stands on, and taking one away is taking its folder away."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_pipeline
from grpo_pipeline.tasks import BUILT_IN

SRC = Path(grpo_pipeline.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/adding_a_task.md").read_text(encoding="utf-8")
SEAM = set(re.findall(r"`(grpo_pipeline\.[\w.]+)`", PAGE.partition("## What a task may import")[2].partition("\n## ")[0]))


def imported(file: Path) -> set[str]:
    """Return the modules of this project that a file imports; ``from a import b`` is ``a.b`` where that is a module."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grpo_pipeline"):
            inner = {f"{node.module}.{alias.name}": SRC.joinpath(*node.module.split(".")[1:], alias.name) for alias in node.names}
            modules = {name for name, path in inner.items() if path.is_dir() or path.with_suffix(".py").exists()}
            found |= modules or {str(node.module)}
    return found


def files_of(task: str, *, kedro_side: bool) -> list[Path]:
    folder = SRC / "tasks" / task
    return sorted(file for file in folder.rglob("*.py") if file.is_relative_to(folder / "pipelines") == kedro_side)


@pytest.mark.parametrize("task", BUILT_IN)
def test_a_task_imports_what_the_page_says_and_itself(task: str) -> None:
    own = f"grpo_pipeline.tasks.{task}"
    for file in files_of(task, kedro_side=True) + files_of(task, kedro_side=False):
        others = {name for name in imported(file) if not f"{name}.".startswith(f"{own}.")}
        outside = {name for name in others if not any(f"{name}.".startswith(f"{allowed}.") for allowed in SEAM)}
        assert not outside, f"{file.relative_to(SRC)} imports {outside}: docs/adding_a_task.md does not name it"


@pytest.mark.parametrize("task", BUILT_IN)
def test_inside_a_task_nothing_knows_its_kedro_side(task: str) -> None:
    for file in files_of(task, kedro_side=False):
        assert not {name for name in imported(file) if name.startswith(f"grpo_pipeline.tasks.{task}.pipelines")}, file


def test_the_page_names_no_more_than_the_tasks_use() -> None:
    used = {
        name for task in BUILT_IN for side in (True, False) for file in files_of(task, kedro_side=side) for name in imported(file)
    }
    assert {allowed for allowed in SEAM if any(f"{name}.".startswith(f"{allowed}.") for name in used)} == SEAM


def test_a_task_is_taken_away_with_its_folders(tmp_path: Path) -> None:
    """Package and configuration: the other tasks' pipelines are listed as before, and nothing names what is gone."""
    gone, *kept = BUILT_IN
    for name in ("src", "conf", "pyproject.toml"):
        take = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        take(ROOT / name, tmp_path / name)
    shutil.rmtree(tmp_path / "src/grpo_pipeline/tasks" / gone)
    for folder in (tmp_path / "conf").glob(f"*/{gone}"):
        shutil.rmtree(folder)
    code = "from grpo_pipeline.pipeline_registry import register_pipelines; print(*register_pipelines())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    listed = done.stdout.split()
    assert set(kept) <= set(listed)
    assert not [name for name in listed if name.startswith(gone)]
