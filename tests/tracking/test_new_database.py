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

from grpo_pipeline.tracking.database import _owned, create_database

CREATE = "import sys; from grpo_pipeline.tracking.database import create_database; create_database(sys.argv[1])"


def test_a_killed_creation_leaves_nothing_that_a_later_one_trips_over(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    uri = f"sqlite:///{path}"
    process = subprocess.Popen([sys.executable, "-c", CREATE, uri], stderr=subprocess.DEVNULL)
    begun = wait_for_partial(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert begun, "the kill came before the creation began"
    assert not path.exists()
    create_database(uri)
    assert MlflowClient(uri).create_experiment("first") == "1"
    assert list(tmp_path.iterdir()) == [path]


def wait_for_partial(folder: Path) -> bool:
    """Return once a partial database has tables, or False after a long time."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if any(found.stat().st_size > 100_000 for found in folder.glob("mlflow.db.partial-*[0-9a-f]")):
            return True
        time.sleep(0.01)
    return False


def test_remains_go_beside_a_finished_database_and_what_is_being_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"somebody's")
    for name in ("mlflow.db.partial-1", "mlflow.db.partial-2-ab", "mlflow.db.partial-2-ab-journal"):
        (tmp_path / name).write_bytes(b"of the dead")
    (tmp_path / "mlflow.db.backup").write_bytes(b"kept")
    with _owned(tmp_path / "mlflow.db.partial-3-cd"):
        code = subprocess.run([sys.executable, "-c", CREATE, f"sqlite:///{path}"], check=False).returncode
        assert code == 0
        assert {found.name for found in tmp_path.iterdir()} == {"mlflow.db", "mlflow.db.backup", "mlflow.db.partial-3-cd"}
    create_database(f"sqlite:///{path}")
    assert {found.name for found in tmp_path.iterdir()} == {"mlflow.db", "mlflow.db.backup"}


def test_an_empty_file_becomes_a_database_whose_creation_alone_waits_for_no_disk(tmp_path: Path) -> None:
    waits, path = [], tmp_path / "mlflow.db"
    path.touch()

    def note(connection: Connection) -> None:
        waits.append(connection.connection.execute("PRAGMA synchronous").fetchone()[0])

    event.listen(Engine, "commit", note)
    try:
        create_database(f"sqlite:///{path}")
        creation, waits = waits, []
        client = MlflowClient(f"sqlite:///{path}")
        client.create_experiment("first")
    finally:
        event.remove(Engine, "commit", note)
    assert len(creation) > 20
    assert set(creation) == {0}
    assert set(waits) == {2}
    assert {experiment.name for experiment in client.search_experiments()} == {"Default", "first"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "postgresql://127.0.0.1:9/runs"])
def test_other_stores_are_not_touched(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    create_database(uri)
    assert list(tmp_path.iterdir()) == []
