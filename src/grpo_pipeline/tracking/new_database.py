"""Create MLflow's sqlite database as a whole or not at all.

MLflow makes the tables of a new database in some hundred migrations, each committed for itself. A kill in the middle leaves a
database that no later run can open. So the tables are made in a file beside it, which takes its name when it is complete.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlflow.tracking import MlflowClient
from sqlalchemy import Engine, event

from grpo_pipeline.tracking.store import SQLITE


def create_database(uri: str) -> None:
    """Create the database of a sqlite URI where there is none, or an empty file; any other URI is left alone.

    Remains of a process that was killed while it created one are overwritten or stay beside it, unread. Two processes may
    create at once: the first to finish wins.
    """
    path = Path(uri.removeprefix(SQLITE).partition("?")[0])
    if not uri.startswith(SQLITE) or is_made(path):
        return
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    partial.unlink(missing_ok=True)
    try:
        with _without_waiting_for_disk(partial):
            MlflowClient(f"{SQLITE}{partial}").search_experiments(max_results=1)
        _flush_to_disk(partial)
        if not is_made(path):
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def is_made(path: Path) -> bool:
    """Say whether there is more than an empty file, which is what asking for write access leaves."""
    return path.is_file() and path.stat().st_size > 0


@contextmanager
def _without_waiting_for_disk(path: Path) -> Iterator[None]:
    """Let sqlite not wait for the disk after each of the migrations: nobody reads this file before it is complete.

    On a slow disk a thousand such waits make minutes.
    """

    def prepare(connection: Any, record: Any) -> None:
        _, _, file = connection.execute("PRAGMA database_list").fetchone()
        if Path(file) == path.resolve():
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", prepare)
    try:
        yield
    finally:
        event.remove(Engine, "connect", prepare)


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
