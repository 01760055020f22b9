"""A run that is killed by SIGKILL goes on from its checkpoint and ends where an unbroken run ends."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kedro_processes import start

from grpo_pipeline.core.storage.checkpoint import CheckpointError, load_progress

Run = Callable[..., subprocess.CompletedProcess[str]]
EPOCHS, SAVE_EVERY = 14, 3
# One checkpoint every third step; gradients are reported and held-out cores scored as usual.
PARAMS = f"attention.training.epochs={EPOCHS},attention.training.checkpoint_every_steps={SAVE_EVERY}"
TIMES = {"step_seconds", "samples_per_second", "peak_memory_mb"}
MODELS, OUTPUTS = (Path("data") / layer / "attention_smoke" for layer in ("06_models", "07_model_output"))
pytestmark = pytest.mark.slow


def checkpoint_of(project: Path, arm: str) -> Path:
    return project / MODELS / arm / "checkpoint"


def step_of(project: Path, arm: str) -> int:
    """Return the step of the last complete checkpoint; 0 without one, or in the moment in which it is replaced."""
    try:
        return int(load_progress(checkpoint_of(project, arm))["step"])
    except (FileNotFoundError, CheckpointError):
        return 0


def rows_of(project: Path, arm: str) -> list[dict[str, Any]]:
    lines = (project / OUTPUTS / arm / "metric_rows.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMES} for line in lines]


def results(project: Path) -> dict[str, Any]:
    """Return what training leaves behind: weights and optimiser as bytes, metric rows without the clock's."""
    files = {path for arm in ("supervised", "grpo") for path in checkpoint_of(project, arm).glob("*.safetensors")}
    tensors = {f"{path.parts[-3]}/{path.name}": path.read_bytes() for path in files}
    return tensors | {f"{arm}/rows": rows_of(project, arm) for arm in ("supervised", "grpo")}


def run_and_kill(project: Path, arm: str, resume: str, *, timeout: float = 600) -> int:
    """Start a run and kill it as soon as the arm has written two checkpoints; return the step on disk."""
    params = f"{resume},{PARAMS}"
    process = start(project, "--pipelines", "attention_train", "--params", params)
    deadline = time.monotonic() + timeout
    while step_of(project, arm) < 2 * SAVE_EVERY:
        assert process.poll() is None, f"the run ended with {process.returncode} too early"
        assert time.monotonic() < deadline, "no checkpoint in time"
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    return step_of(project, arm)


@pytest.mark.timeout(900)
def test_killed_run_ends_where_an_unbroken_one_ends(project: Path, kedro_run: Run):
    unbroken = kedro_run(project, "--pipelines", "attention_data,attention_train", "--params", PARAMS)
    assert unbroken.returncode == 0, unbroken.stderr
    expected, total = results(project), step_of(project, "grpo")
    for folder in (MODELS, OUTPUTS):
        shutil.rmtree(project / folder)

    # Once in each arm; the second kill finds the first arm resumed and finished.
    assert 2 * SAVE_EVERY <= run_and_kill(project, "grpo", "resume=never") < total
    assert 2 * SAVE_EVERY <= run_and_kill(project, "supervised", "resume=auto") < total
    assert step_of(project, "grpo") == total

    resumed = kedro_run(project, "--pipelines", "attention_train", "--params", f"resume=auto,{PARAMS}")
    assert resumed.returncode == 0, resumed.stderr
    got = results(project)
    assert got.keys() == expected.keys()
    assert len(expected) == 6  # policy and optimiser of both arms, and two tables of rows; grpo's reference never moves
    assert [name for name in expected if got[name] != expected[name]] == []
