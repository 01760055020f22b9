"""A result is what data, parameters and seed make of it: the machine's cores and the environment's threads move no bit."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kedro_processes import clean_environ, newest

from grpo_pipeline.runs.machine import VARIABLES, compute_in

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
MACHINES = ((1, 1), (2, 8))  # cores that the process may use, and what the environment says of threads


def result(project: Path, task: str, *, cores: int, threads: int) -> dict[str, str]:
    """Run a task in ``smoke`` as such a machine would, and return file -> digest of weights and comparison."""
    environ = clean_environ(**dict.fromkeys(VARIABLES, str(threads)))
    command = [sys.executable, "-m", "kedro", "run", "--env", "smoke", "--pipelines", task, "--to-outputs", f"{task}.comparison"]

    def pin() -> None:
        if CORES:
            os.sched_setaffinity(0, CORES[:cores])

    ran = subprocess.run(
        command, cwd=project, env=environ, preexec_fn=pin, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr
    data, folder = project / "data", f"{task}_smoke"
    weights = sorted((data / "06_models" / folder).rglob("*.safetensors"))
    found = {str(file.relative_to(data)): hashlib.sha256(file.read_bytes()).hexdigest() for file in weights}
    comparison = json.loads(newest(data / "08_reporting" / folder / "comparison.json").read_text())
    comparison.pop("run")  # each has its own
    return found | {"comparison": json.dumps(comparison, sort_keys=True)}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["attention", "dialogue", "molecules"])
def test_cores_and_environment_move_no_bit(project: Path, task: str) -> None:
    first, *others = (result(project, task, cores=cores, threads=threads) for cores, threads in MACHINES)
    assert any(name.endswith(".safetensors") for name in first)
    for other, machine in zip(others, MACHINES[1:], strict=True):
        assert {name for name in first if first[name] != other.get(name)} == set(), machine


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
    finally:
        compute_in(1)
