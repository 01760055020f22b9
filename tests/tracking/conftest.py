"""The smallest Kedro project with this package's hooks, and its MLflow store."""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from forked_kedro import kedro_command
from kedro_processes import clean_environ
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from grpo_pipeline.tracking.database import create_database

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Tiny:
    """A copy of tests/tiny_project; its parameters make the training nodes slow, fail or send themselves a signal."""

    path: Path

    def command(self, *params: str, pipelines: str = "") -> list[str]:
        chosen = ["--pipelines", pipelines] if pipelines else []
        return kedro_command("run", *chosen, *(["--params", ",".join(params)] if params else []))

    def run(self, *params: str, pipelines: str = "", uri: str | None = None, cwd: str = ".") -> subprocess.CompletedProcess[str]:
        env = clean_environ(**({"MLFLOW_TRACKING_URI": uri} if uri else {}))
        command = self.command(*params, pipelines=pipelines)
        return subprocess.run(command, cwd=self.path / cwd, env=env, capture_output=True, text=True, timeout=600, check=False)

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(f"sqlite:///{self.path / 'mlflow.db'}")

    def runs(self) -> list[Run]:
        """All runs, the oldest first."""
        experiment = self.client.get_experiment_by_name("tiny")
        return self.client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])

    def statuses(self) -> list[tuple[str, str]]:
        return [(run.info.run_name, run.info.status) for run in self.runs()]


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without runs: creating one takes seconds, copying it does not."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    create_database(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Tiny]:
    """``make_tiny()``: a project of its own, without a store."""

    def make() -> Tiny:
        path = tmp_path_factory.mktemp("tiny") / "project"
        shutil.copytree(ROOT / "tests" / "tiny_project", path, ignore=shutil.ignore_patterns("__pycache__"))
        # git keeps no empty folders.
        for folder in ("data", "conf/local"):
            (path / folder).mkdir(exist_ok=True)
        shutil.copy(ROOT / "conf" / "logging.yml", path / "conf" / "logging.yml")
        return Tiny(path)

    return make


@pytest.fixture
def tiny(make_tiny: Callable[[], Tiny], empty_store: Path) -> Tiny:
    """A project of its own with an empty store."""
    made = make_tiny()
    shutil.copy(empty_store, made.path)
    return made
