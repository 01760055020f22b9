"""`kedro run` in a process of its own: how it is started, what is seen of it from outside, and what it leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
from forked_kedro import kedro_command
from mlflow.entities import Run
from mlflow.tracking import MlflowClient


def clean_environ(**changes: str) -> dict[str, str]:
    """Return this process's environment with changes, without what a shell may have set for MLflow and Kedro."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "KEDRO_"))} | changes


def start(project: Path, *args: str, forked: bool = True, **environ: str) -> "subprocess.Popen[str]":
    """Start ``kedro run --env smoke`` with arguments and return at once; ``communicate`` reads what it says.

    A run that is not forked has the id of the process that is returned, and is its child.
    """
    args = ("run", "--env", "smoke", *args)
    command = kedro_command(*args) if forked else [sys.executable, "-m", "kedro", *args]
    environ = clean_environ(**environ)
    return subprocess.Popen(command, cwd=project, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(
    project: Path, *args: str, env: str = "smoke", folder: str = ".", code: str = "", seconds: float = 600, **environ: str
) -> "subprocess.CompletedProcess[str]":
    """Run ``kedro run --env <env>`` with arguments to its end, in a folder of the project; ``code`` is run in its place.

    Nothing that a shell has set for MLflow and Kedro is in its environment, and ``environ`` is.
    """
    command = kedro_command(*args, code=code) if code else kedro_command("run", "--env", env, *args)
    where, variables = project / folder, clean_environ(**environ)
    return subprocess.run(command, cwd=where, env=variables, capture_output=True, text=True, timeout=seconds, check=False)


def trained_steps(project: Path, task: str, arm: str) -> int:
    """Return the step of an arm's last checkpoint in ``smoke``; 0 without one, or in the moment in which it is replaced."""
    try:
        header = project / f"data/06_models/{task}_smoke/{arm}/checkpoint/checkpoint.json"
        return int(json.loads(header.read_text())["progress"]["step"])
    except (OSError, ValueError):
        return 0


def reward_processes(project: Path) -> list[int]:
    """Return the ids of the reward processes that were started in the project, a resolved path."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            ours = os.readlink(entry / "cwd") == str(project) and b"rewards.worker_main" in (entry / "cmdline").read_bytes()
        except OSError:
            continue
        found += [int(entry.name)] if ours else []
    return found


def metric_rows(project: Path, task: str, arm: str, split: str) -> pd.DataFrame:
    """Return an arm's metrics in ``smoke``, one row per step (``train``) or validation (``val``)."""
    lines = (project / f"data/07_model_output/{task}_smoke/{arm}/metric_rows.jsonl").read_text().splitlines()
    rows = pd.DataFrame([json.loads(line) for line in lines])
    return rows[rows["split"] == split]


def newest(file: Path) -> Path:
    """Return the newest version of a versioned file, ``<file>/<version>/<name of the file>``."""
    return sorted(file.glob(f"*/{file.name}"))[-1]


def finished_runs(project: Path) -> dict[str, Run]:
    """Return the MLflow runs of ``smoke`` that ended well, by name."""
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("grpo_pipeline_smoke")
    runs = client.search_runs([experiment.experiment_id], filter_string="attributes.status = 'FINISHED'")
    return {command_of(run): run for run in runs}


def command_of(run: Run) -> str:
    """Return the pipelines of a parent, which its name begins with, or the name of a child."""
    return str(run.info.run_name).partition(" ")[0]


def tracked_files(project: Path) -> set[str]:
    """Return the names of the files of all runs in the project's MLflow store, without their folders."""
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return {name for run in runs for name in _files_of(client, run.info.run_id, "")}


def _files_of(client: MlflowClient, run: str, folder: str) -> set[str]:
    found = client.list_artifacts(run, folder)
    deeper = (_files_of(client, run, entry.path) for entry in found if entry.is_dir)
    return {Path(entry.path).name for entry in found if not entry.is_dir}.union(*deeper)
