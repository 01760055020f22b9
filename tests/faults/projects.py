"""Projects to be disturbed: how a run is started in one, what it left, and what two runs must agree on."""

import hashlib
import json
import os
import re
import runpy
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TASKS = ("attention", "dialogue", "molecules")
QUIET = {
    "DO_NOT_TRACK": "true",
    "GRPO_PROGRESS": "off",
    "GRPO_TRACEBACK": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MPLBACKEND": "agg",
    "OMP_NUM_THREADS": "1",
}
# What a metric row says of the machine, not of the training.
OF_THE_MACHINE = ("peak_memory_mb", "samples_per_second", "step_seconds")
# Libraries that every run imports; `--fork` imports them once.
PRELOADED = ("kedro.framework.cli.cli", "matplotlib.pyplot", "mlflow.tracking", "pandas", "rdkit.Chem")
PRELOADED += ("scipy.stats", "sklearn.feature_extraction.text", "torch", "torch.optim", "transformers", "kedro_viz")
SECONDS = 900


@dataclass
class Started:
    """A run that has been started.

    Attributes:
        pid: its process, the leader of a group of its own.
        log: file of what it says.
        code: how it ended; None while it runs. Minus the signal's number where one ended it.
    """

    pid: int
    log: Path
    code: int | None = None

    def wait(self, seconds: float = SECONDS) -> int | None:
        """Wait until it ends, or so long; return ``code``."""
        end = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                return None
            else:
                try:
                    time.sleep(0.02)
                except BaseException:  # who waits is stopped: nothing goes on behind its back
                    self.kill(whole_group=True)
                    raise
        return self.code

    def kill(self, *, whole_group: bool) -> None:
        """Send SIGKILL to the process, or to all that it started as well."""
        (os.killpg if whole_group else os.kill)(self.pid, signal.SIGKILL)
        self.wait()

    @property
    def said(self) -> str:
        """Return what it has printed, on either stream."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def has_traceback(self) -> bool:
        """Whether a person has seen one."""
        return "Traceback (most recent call last)" in self.said

    @property
    def refusal(self) -> str:
        """The one sentence of a refused run; empty where it ended in another way."""
        found = re.search(r"^error: (.+?)(  \[GRPO_TRACEBACK=1 shows the traceback\])?$", self.said, re.MULTILINE)
        return found[1] if found and self.code == 1 and not self.has_traceback else ""


Start = Callable[..., Started]


def start_process(project: Path, *args: str, env: str = "smoke", **environ: str) -> Started:
    """Start ``kedro run`` in a new interpreter."""
    log = _new_log(project)
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "kedro", *_arguments(args, env)],
            cwd=project,
            env=_environ(environ),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process.returncode = 0  # waited for by its id
    return Started(process.pid, log)


def start_fork(project: Path, *args: str, env: str = "smoke", **environ: str) -> Started:
    """Start ``kedro run`` in a copy of this process, which has imported the libraries but nothing of the project."""
    log = _new_log(project)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            with log.open("w") as file:
                for stream in (1, 2):
                    os.dup2(file.fileno(), stream)
            os.environ.clear()
            os.environ.update(_environ(environ))
            os.chdir(project)
            sys.argv = ["kedro", *_arguments(args, env)]
            sys.path[0] = str(project)
            try:
                runpy.run_module("kedro", run_name="__main__", alter_sys=True)
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:  # noqa: BLE001 - as the interpreter does at its end
                sys.excepthook(*sys.exc_info())
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return Started(pid, log)


def preload() -> None:
    """Import what ``start_fork`` shares."""
    os.environ.update(QUIET)
    for name in PRELOADED:
        __import__(name)


def make_project(target: Path) -> Path:
    """Make ``target`` a project with a copy of this repository's code and configuration, and no data."""
    target.mkdir(parents=True)
    shutil.copytree(ROOT / "conf", target / "conf", ignore=lambda folder, names: names if Path(folder).name == "local" else [])
    (target / "conf/local").mkdir(exist_ok=True)
    for name in ("pyproject.toml", ".telemetry"):
        shutil.copy(ROOT / name, target / name)
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src/grpo_pipeline", target / "src/grpo_pipeline", ignore=skip)
    for layer in (ROOT / "data").glob("0*"):
        (target / "data" / layer.name).mkdir(parents=True)
    return target


def forget_results(project: Path) -> None:
    """Empty the data folder and the MLflow store."""
    for path in [*project.glob("data/*/*"), *project.glob("data/.runs"), *project.glob("ml*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def results(project: Path, task: str) -> dict[str, Any]:
    """Return what a finished run reports, by name: digests of weights and tables, metric rows, the comparison, MLflow's metrics.

    Of versioned files the one that was written last counts, whatever its name says of the time.
    """
    found: dict[str, Any] = {}
    for layer, names in {"06_models": ("model",), "07_model_output": ("predictions.csv", "rollouts.csv")}.items():
        for name in names:
            for folder in sorted(project.glob(f"data/{layer}/{task}_smoke/*/{name}")):
                file = _latest(folder / version / name for version in _names(folder))
                if file is not None:
                    content = file / "model.safetensors" if name == "model" else file
                    found[f"{folder.parent.name}/{name}"] = digest(content)
    for file in sorted(project.glob(f"data/07_model_output/{task}_smoke/*/metric_rows.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        found[f"{file.parent.name}/metric_rows"] = [
            {key: value for key, value in row.items() if key not in OF_THE_MACHINE} for row in rows
        ]
    for file in sorted(project.glob(f"data/07_model_output/{task}_smoke/compare/trials/*/predictions.csv")):
        found[f"{file.parent.name}/predictions"] = digest(file)
    grid = project / f"data/08_reporting/{task}_smoke/compare/result.json"
    found["grid"] = json.loads(grid.read_text()) if grid.is_file() else None
    comparisons = project / f"data/08_reporting/{task}_smoke/comparison.json"
    file = _latest(comparisons / version / "comparison.json" for version in _names(comparisons))
    found["comparison"] = None if file is None else json.loads(file.read_text())
    found["mlflow"] = tracked_metrics(project, task)
    return found


def tracked_metrics(project: Path, task: str) -> dict[str, list[list[Any]]]:
    """Return what the store holds of each arm that finished: run name -> sorted (metric, step, value), each as often as it is."""
    store = project / "mlflow.db"
    if not store.is_file():
        return {}
    query = (
        "SELECT r.name, m.key, m.step, m.value, m.is_nan FROM metrics m JOIN runs r ON r.run_uuid = m.run_uuid "
        "WHERE r.status = 'FINISHED' AND r.name LIKE ? ORDER BY 1, 2, 3, 4"
    )
    found: dict[str, list[list[Any]]] = {}
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as connection:
        for run, key, step, value, _ in connection.execute(query, (f"{task}.%",)):
            if key not in OF_THE_MACHINE:
                found.setdefault(run, []).append([key, step, value])
    return found


Place = tuple[str | int, ...]


def differences(expected: Any, found: Any, place: Place = ()) -> list[Place]:
    """Return the places in which two results differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        names = sorted({*expected, *found})
        return [deeper for name in names for deeper in differences(expected.get(name), found.get(name), (*place, name))]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [deeper for i, (a, b) in pairs for deeper in differences(a, b, (*place, i))]
    return [] if expected == found or (expected != expected and found != found) else [place]


def without(result: Any, places: Iterable[Place]) -> Any:
    """Return a result without what stands in these places: there two undisturbed runs differ (ids of runs, times)."""
    left = json.loads(json.dumps(result))
    for *parents, last in places:
        inner: Any = left
        for part in parents:
            inner = inner[part] if isinstance(inner, list) or part in (inner or {}) else None
        if isinstance(inner, dict):
            inner.pop(last, None)
    return left


def tree(folder: Path) -> dict[str, str]:
    """Return file -> digest of all that was reported: models, predictions and reports, without what a run is still writing."""
    patterns = ("06_models/**/model/**/*", "07_model_output/**/*.csv", "08_reporting/**/*")
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return {str(path.relative_to(folder)): digest(path) for path in sorted(files)}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, or that it is missing."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"


def _latest(paths: Iterable[Path]) -> Path | None:
    return max((path for path in paths if path.exists()), key=lambda path: path.stat().st_mtime_ns, default=None)


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _new_log(project: Path) -> Path:
    folder = project / "logs"
    folder.mkdir(exist_ok=True)
    return folder / f"{time.monotonic_ns()}.txt"


def _arguments(args: tuple[str, ...], env: str) -> list[str]:
    return ["run", "--env", env, *args]


def _environ(changes: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "KEDRO_"))}
    return kept | QUIET | changes
