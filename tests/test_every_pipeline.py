"""Every registered pipeline runs in `smoke`: none is there to be looked at alone."""

from pathlib import Path
from typing import Any

import pytest
from kedro_processes import run

from grpo_pipeline.pipeline_registry import PIPELINES, SHORT, register_pipelines
from grpo_pipeline.tasks import BUILT_IN, find_task

REGISTERED = register_pipelines()
WHOLE = ("data", "train", "evaluate")
# A stage before what reads it; what needs nothing of an earlier run comes first, in a project without any.
ORDER = ["step", *WHOLE, *(name for name in PIPELINES if name not in ("step", *WHOLE))]
# A result that each leaves, below the layers of the data.
LEFT = {
    "step": "07_model_output/*/grpo/probe_table.csv/*/probe_table.csv",
    "data": "05_model_input/*/examples",
    "train": "06_models/*/grpo/model/*",
    "evaluate": "08_reporting/*/report.html",
    "gradient_flow": "08_reporting/*/grpo/gradient_flow.csv",
    "reward_audit": "08_reporting/*/reward_audit/result.json",
    "compare": "08_reporting/*/compare/result.json/*/result.json",
    "cross_validate": "08_reporting/*/cross_validation/result.json/*/result.json",
    "predict": "07_model_output/*/predict/report.json",
}
# Lines of progress, of commands that may work on several tasks.
SAID = {"train": ("train {task}.grpo: ", "evaluate {task}"), "evaluate": ("compare {task}: ",)}


def test_no_registered_pipeline_is_left_out() -> None:
    """A task from end to end is its three stages; a name without a task is that of the first one."""
    first = next(iter(BUILT_IN))
    again = {"__default__": first, **{name: f"{first}_{name}" for name in SHORT}}
    parts = {f"{task}_{part}" for task in BUILT_IN for part in ORDER}
    assert {"self_check", *BUILT_IN, *parts, *again} == REGISTERED.keys()
    assert [name for name, other in again.items() if REGISTERED[name] is not REGISTERED[other]] == []
    stages = {task: [REGISTERED[f"{task}_{name}"] for name in WHOLE] for task in BUILT_IN}
    unlike = [task for task, found in stages.items() if {*sum(found[1:], start=found[0]).nodes} != {*REGISTERED[task].nodes}]
    assert (unlike, LEFT.keys()) == ([], {*PIPELINES})


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, make_project: Any) -> Path:
    """One project without results, in which each pipeline finds what those before it have left."""
    return make_project(tmp_path_factory.mktemp("every") / "project")


@pytest.mark.parametrize("part", ORDER)
@pytest.mark.parametrize("task", BUILT_IN)
def test_a_registered_pipeline_runs(project: Path, task: str, part: str) -> None:
    spec = find_task(task)
    params = [f"{task}.{name}.max_steps=5" for name in ("training", *(f"{stage}.training" for stage in spec.stages))]
    left = f"data/{LEFT[part]}".replace("*", f"{task}_smoke", 1)
    before = {path: path.stat().st_mtime_ns for path in project.glob(left)}
    done = run(project, "--pipelines", f"{task}_{part}", "--params", ",".join(params), GRPO_PROGRESS="")
    assert done.returncode == 0, done.stderr[-3000:]
    for line in SAID.get(part, ()):
        assert f"\n{line.format(task=task)}" in f"\n{done.stderr}"
    found = {path: path.stat().st_mtime_ns for path in project.glob(left)}
    assert found
    assert found != before


def test_the_self_check_runs(project: Path) -> None:
    done = run(project, "--pipelines", "self_check")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "self-check" in done.stdout
