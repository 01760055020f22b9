"""Create MLflow's sqlite database as a whole or not at all.

MLflow makes the tables of a new database in some hundred migrations, each committed for itself. A kill in the middle leaves a
database that no later run can open. So the tables are made in a file beside it, which takes its name when it is complete.
"""

import fcntl
import glob
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from grpo_pipeline.tracking.store import SQLITE

PARTIAL = ".partial-"

BESIDE = ("-journal", "-wal", "-shm")  # files of sqlite's own, named after the database


def create_database(uri: str) -> None:
    """Create the database of a sqlite URI if it is missing or an empty file; any other URI is left alone.

    Remains of a process that was killed while it created one are removed, whether or not there is a database by now. Two
    processes may create at once: the first to finish wins.
    """
    path = Path(uri.removeprefix(SQLITE).partition("?")[0])
    if not uri.startswith(SQLITE):
        return
    _remove_remains(path)
    if is_made(path):
        return
    partial = path.with_name(f"{path.name}{PARTIAL}{os.getpid()}-{uuid.uuid4().hex[:8]}")
    from mlflow.tracking import MlflowClient

    # sqlite's own locks are of another kind (fcntl), so that this one, which ends with the process, does not meet them. Closed at
    # the very end: closing any descriptor of a file gives sqlite's locks away.
    with _owned(partial):
        try:
            with _without_waiting_for_disk(partial):
                MlflowClient(f"{SQLITE}{partial}").search_experiments(max_results=1)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            if not is_made(path):
                os.replace(partial, path)
        finally:
            _remove(partial)


def is_made(path: Path) -> bool:
    """Check whether the database file is more than the empty file that a test of write access leaves."""
    return path.is_file() and path.stat().st_size > 0


@contextmanager
def _owned(partial: Path) -> Iterator[None]:
    """Create an empty file, locked as in progress until this block or the process ends."""
    # Created under a name that no process removes: until it is locked, it would look like the file of a dead process.
    hidden = partial.with_name(f".{partial.name}")
    with hidden.open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.replace(hidden, partial)
        yield


def _remove_remains(path: Path) -> None:
    """Remove the partial databases of ended processes, with the files that sqlite wrote beside them."""
    if not path.parent.is_dir():
        return
    for found in sorted(path.parent.glob(f"{glob.escape(path.name)}{PARTIAL}*")):
        if found.name.endswith(BESIDE):
            continue
        with (
            suppress(OSError),
            found.open("rb") as file,
        ):  # it was finished meanwhile, or the folder is read-only
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(found)


def _remove(partial: Path) -> None:
    for name in (partial.name, *(partial.name + end for end in BESIDE)):
        partial.with_name(name).unlink(missing_ok=True)


@contextmanager
def _without_waiting_for_disk(path: Path) -> Iterator[None]:
    """Switch off sqlite's waits for the disk during the migrations: no process reads this file before it is complete.

    On a slow disk, a thousand such waits take minutes.
    """
    from sqlalchemy import Engine, event

    def prepare(connection: Any, record: Any) -> None:
        _, _, file = connection.execute("PRAGMA database_list").fetchone()
        if Path(file) == path.resolve():
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", prepare)
    try:
        yield
    finally:
        event.remove(Engine, "connect", prepare)
