"""A result is what data, parameters and seed make of it: cores, the environment's threads and other tasks move no bit."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from kedro_processes import newest, run, start
from threadpoolctl import threadpool_info

from grpo_pipeline.runs.threads import VARIABLES, compute_in

TASKS = ("attention", "dialogue", "molecules")
STEPS = ("dialogue.warm_start", "dialogue", "molecules.warm_start", "molecules", "molecules.eager")
SHORT = ",".join(f"{part}.training.max_steps=2" for part in STEPS)
ON_ONE_CORE = """
import os, sys
from kedro.framework.cli import main
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
sys.argv = ["kedro", *sys.argv[1:]]
main()
"""


def options(tasks: Sequence[str]) -> list[str]:
    ends = ",".join(f"{task}.comparison" for task in tasks)
    return ["--pipelines", ",".join(tasks), "--to-outputs", ends, "--params", SHORT]


def result(project: Path, task: str) -> dict[str, str]:
    """Return file -> digest of a task's weights, and its comparison."""
    data, folder = project / "data", f"{task}_smoke"
    # The best weights are no part of what leads to a comparison, where this command ends.
    weights = sorted(file for file in (data / "06_models" / folder).rglob("*.safetensors") if "best" not in file.parts)
    # A version is a time.
    found = {
        re.sub(r"/\d{4}-[^/]+", "", str(file.relative_to(data))): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in weights
    }
    comparison = json.loads(newest(data / "08_reporting" / folder / "comparison.json").read_text())
    del comparison["run"], comparison["commit"]  # each has its own; one of the projects is under git
    return found | {"comparison": json.dumps(comparison, sort_keys=True)}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory, make_project) -> Path:
    """A project with a run of all tasks in one command, on one core and in one thread."""
    project = make_project(tmp_path_factory.mktemp("together") / "project")
    ran = run(project, "run", "--env", "smoke", *options(TASKS), code=ON_ONE_CORE)
    assert ran.returncode == 0, ran.stderr
    return project


@pytest.mark.slow
def test_neither_cores_nor_environment_nor_other_tasks_move_a_bit(together: Path, project: Path, smoke_run) -> None:
    """A process on all cores, with 8 threads in its environment and the last task first; and attention alone."""
    process = start(project, *options(TASKS[::-1]), forked=False, **dict.fromkeys(VARIABLES, "8"))
    said = process.communicate(timeout=600)[1]
    assert process.returncode == 0, said
    for task, other in [*((task, project) for task in TASKS), ("attention", smoke_run[0])]:
        found, expected = result(other, task), result(together, task)
        assert any(name.endswith(".safetensors") for name in found)
        assert found.keys() == expected.keys()
        assert [name for name in found if found[name] != expected[name]] == []


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2", None])
def test_threads_must_be_a_number_of_them(threads: object) -> None:
    with pytest.raises(ValueError, match=r"threads must be a whole number of at least 1, got "):
        compute_in(threads)


def test_the_number_holds_in_this_process_and_in_those_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "OMP_DYNAMIC", "MKL_DYNAMIC"):
        monkeypatch.setenv(name, "7")
    try:
        compute_in(3)
        child = f"import torch, os; print(torch.get_num_threads(), *(os.environ[name] for name in {VARIABLES!r}))"
        said = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout.split()
        assert (torch.get_num_threads(), said) == (3, ["3"] * (1 + len(VARIABLES)))
        assert (os.environ["OMP_DYNAMIC"], os.environ["MKL_DYNAMIC"]) == ("FALSE", "FALSE")
        assert {pool["num_threads"] for pool in threadpool_info()} == {3}
    finally:
        compute_in(1)
