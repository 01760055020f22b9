"""Fixtures of every test: one thread, no display, no progress bars, and projects of its own to run Kedro in."""

import fcntl
import gc
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUIET = {
    "DO_NOT_TRACK": "true",
    "GRPO_PROGRESS": "off",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MPLBACKEND": "agg",
    "OMP_NUM_THREADS": "1",
}
os.environ.update(QUIET)  # before torch and matplotlib are imported: both read it then
gc.disable()  # until all tests are imported: a fifth of that time goes to looking through what stays

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from forked_kedro import kedro_command  # noqa: E402

import grpo_pipeline  # noqa: E402  (this one, whatever projects are opened later in this process)

# The same parser in C, as in the runs: hundreds of tests read the configuration.
yaml.SafeLoader, yaml.SafeDumper = yaml.CSafeLoader, yaml.CSafeDumper

# A time limit per example would measure what else the machine does.
hypothesis.settings.register_profile("any_speed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("any_speed")

KedroRun = Callable[..., subprocess.CompletedProcess[str]]


def pytest_configure(config: pytest.Config) -> None:
    """Fix the number of threads: sums split over threads differ in their last bits; and let Ctrl-C be heard.

    A shell starts what runs in the background with SIGINT ignored, and so would be what the tests start and interrupt.
    """
    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that parallel processes end together; skip ``gpu`` tests without a device."""
    runs_kedro = {"kedro_run", "make_project", "make_tiny", "smoke_run"}
    long = {item.path for item in items if item.get_closest_marker("slow") or runs_kedro & set(getattr(item, "fixturenames", ()))}
    items.sort(key=lambda item: item.path not in long)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch finds none here"))


def pytest_collection_finish() -> None:
    """Let the garbage collector look no more through the objects of libraries and tests, and seldom through those of a test."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    gc.enable()


@pytest.fixture(autouse=True)
def no_store_is_inherited() -> Iterator[None]:
    """Let no test find the store of one before: ``mlflow.set_tracking_uri`` sets it for all processes started from here.

    Not monkeypatch: that puts back what a fixture of a wider scope has left.
    """
    _forget_store()
    yield
    _forget_store()


def _forget_store() -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "KEDRO_ENV"):
        os.environ.pop(name, None)
    if mlflow := sys.modules.get("mlflow"):
        mlflow.set_tracking_uri(None)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def committed_files() -> tuple[Path, ...]:
    """Every file that git tracks and that is there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runnable project in a temporary folder: this one's code and configuration, empty data, no local settings.

    What opening a Kedro project leaves in this process (sys.path, PYTHONPATH) is undone after the test.
    """
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return copy_project(tmp_path / "project")


@pytest.fixture(scope="session")
def make_project() -> Callable[[Path], Path]:
    """``make_project(target)``: make ``target`` a project like the one of the fixture ``project``."""
    return copy_project


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A project under git and its one run of attention, seed 0; a test changes a copy only.

    The parallel processes of pytest-xdist share it: the first that asks makes it, and the others wait.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    project, said = base / "smoke" / "project", base / "smoke.json"
    with (base / "smoke.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.is_file():
            shutil.rmtree(project.parent, ignore_errors=True)
            said.write_text(json.dumps(_run_smoke(project)))
    return project, subprocess.CompletedProcess([], 0, *json.loads(said.read_text()))


def _run_smoke(target: Path) -> tuple[str, str]:
    """Run attention in a new project and return what it says on standard output and error."""
    from kedro_processes import start  # imports MLflow, which most tests do without

    project = copy_project(target)
    (project / "src/grpo_pipeline").unlink()  # a package is under the git of the folder in which it really lies
    shutil.copytree(Path(grpo_pipeline.__file__).parent, project / "src/grpo_pipeline")
    shutil.copy(ROOT / ".gitignore", project)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "start"]):
        subprocess.run([*git, *command], cwd=project, check=True)
    process = start(project)
    said: tuple[str, str] = process.communicate(timeout=600)
    assert process.returncode == 0, said[1]
    return said


@pytest.fixture
def smoke_copy(smoke_run: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> Path:
    """A copy of the project of ``smoke_run`` of a test's own."""
    return _copy_of_run(smoke_run[0], tmp_path / "project")


@pytest.fixture(scope="session")
def copy_of_run(smoke_run: tuple[Path, subprocess.CompletedProcess[str]]) -> Callable[[Path], Path]:
    """``copy_of_run(target)``: make ``target`` a copy of the project of ``smoke_run``."""
    return partial(_copy_of_run, smoke_run[0])


def _copy_of_run(source: Path, target: Path) -> Path:
    """Copy a project that has run, but for git's and MLflow's files: the runs of the copy's database name those where they are.

    What is tracked from then on lies in the copy.
    """

    def left_out(folder: str, names: list[str]) -> list[str]:
        return [".git", "mlruns", "src"] if Path(folder) == source else []

    shutil.copytree(source, target, symlinks=True, ignore=left_out)
    _link_package(target)
    with closing(sqlite3.connect(target / "mlflow.db")) as database, database:
        moved = (str(source / "mlruns"), str(target / "mlruns"))
        database.execute("UPDATE experiments SET artifact_location = replace(artifact_location, ?, ?)", moved)
    return target


@pytest.fixture
def kedro_run() -> KedroRun:
    """``kedro_run(project, *args, env="smoke", timeout=600)``: run ``kedro run`` there in a process (``forked_kedro``).

    The result is returned whatever the exit status; a test looks at ``returncode``, ``stdout`` and ``stderr``.
    """
    return run_kedro


@pytest.fixture
def shared_data() -> Callable[[str], Path]:
    """``shared_data(name)``: the folder ``../shared/data/<name>`` beside the repository; skips where there is none."""
    return find_shared_data


def copy_project(target: Path) -> Path:
    """Make ``target`` a project with the package under test, this repository's configuration, and no data.

    Not of ``src``: ``make mutations`` puts a faulty package first on the path, and what a project starts must be that one. It is
    a link: sixty copies would be half of the files that the suite writes, and many files cost more than their bytes.
    """
    target.mkdir(parents=True)
    shutil.copytree(ROOT / "conf", target / "conf", ignore=lambda folder, names: names if Path(folder).name == "local" else [])
    for name in ("pyproject.toml", ".telemetry"):
        shutil.copy(ROOT / name, target / name)
    _link_package(target)
    for layer in (ROOT / "data").glob("0*"):
        (target / "data" / layer.name).mkdir(parents=True)
    return target


def _link_package(project: Path) -> None:
    (project / "src").mkdir()
    (project / "src" / "grpo_pipeline").symlink_to(Path(grpo_pipeline.__file__).parent)


def run_kedro(project: Path, *args: str, env: str = "smoke", timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """Run ``kedro run --env <env> <args>`` in ``project`` and return the finished process."""
    command = kedro_command("run", "--env", env, *args)
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=timeout, check=False)


def find_shared_data(name: str) -> Path:
    """Return ``../shared/data/<name>``, or skip the test with the sentence that says why."""
    folder = ROOT.parent / "shared" / "data" / name
    if not folder.is_dir():
        pytest.skip(f"needs the real images of ../shared/data/{name}, which are not beside this repository")
    return folder
