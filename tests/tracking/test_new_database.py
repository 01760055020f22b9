"""A kill while MLflow's tables are made leaves no half of a database."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from sqlalchemy import Connection, Engine, event

from grpo_pipeline.tracking.new_database import create_database

CREATE = "import sys; from grpo_pipeline.tracking.new_database import create_database; create_database(sys.argv[1])"


def test_a_killed_creation_leaves_nothing_that_a_later_one_trips_over(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    uri = f"sqlite:///{path}"
    process = subprocess.Popen([sys.executable, "-c", CREATE, uri], stderr=subprocess.DEVNULL)
    partial, deadline = tmp_path / f"mlflow.db.partial-{process.pid}", time.monotonic() + 240
    while not (begun := partial.exists() and partial.stat().st_size > 100_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert begun, "the kill came before the creation began"
    assert not path.exists()
    create_database(uri)
    assert MlflowClient(uri).create_experiment("first") == "1"


def test_only_the_creation_does_without_waiting_for_the_disk(tmp_path: Path) -> None:
    waits = []

    def note(connection: Connection) -> None:
        waits.append(connection.connection.execute("PRAGMA synchronous").fetchone()[0])

    event.listen(Engine, "commit", note)
    try:
        create_database(f"sqlite:///{tmp_path / 'mlflow.db'}")
        creation, waits = waits, []
        MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}").create_experiment("first")
    finally:
        event.remove(Engine, "commit", note)
    assert len(creation) > 20
    assert set(creation) == {0}
    assert set(waits) == {2}


def test_a_database_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"somebody's")
    create_database(f"sqlite:///{path}")
    assert path.read_bytes() == b"somebody's"
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.touch()
    create_database(f"sqlite:///{path}")
    assert [experiment.name for experiment in MlflowClient(f"sqlite:///{path}").search_experiments()] == ["Default"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "postgresql://127.0.0.1:9/runs"])
def test_other_stores_are_not_touched(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    create_database(uri)
    assert list(tmp_path.iterdir()) == []
