"""Find the MLflow store, and check that it answers."""

import fcntl
import glob
import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

# The parameters of tracking: ``mlflow.yml``. The keys under ``server``, ``tracking`` and ``ui`` have kedro-mlflow's names.


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Server(_Section):
    """Where the store is."""

    mlflow_tracking_uri: str | None = Field(
        None, description="URI of a server or database; null: mlflow.db in the project"
    )


class DisableTracking(_Section):
    """Names of pipelines that are not tracked."""

    pipelines: tuple[str, ...] = Field(
        (), description="a run of these pipelines only is not tracked"
    )


class ExperimentKwargs(_Section):
    """How a new experiment is created."""

    artifact_location: str | None = Field(
        None, description="URI or absolute path; null: mlruns in the project, or the server's"
    )


class Experiment(_Section):
    """Which experiment the runs belong to."""

    name: str = Field("grpo_pipeline", min_length=1, description="created where it does not exist")
    create_experiment_kwargs: ExperimentKwargs = ExperimentKwargs()


class RunName(_Section):
    """How a run is called."""

    name: str | None = Field(None, description="name of the parent run; null: the pipelines' names")


class DictParams(_Section):
    """How nested parameters are named."""

    sep: str = Field(
        ".",
        min_length=1,
        max_length=2,
        description="stands between the levels of a parameter's name",
    )


class Params(_Section):
    """How parameters are logged."""

    dict_params: DictParams = DictParams()
    long_params_strategy: Literal["truncate", "tag"] = Field(
        "truncate", description="what happens to a long value"
    )


class Tracking(_Section):
    """Names and limits of what is tracked in MLflow."""

    disable_tracking: DisableTracking = DisableTracking()
    experiment: Experiment = Experiment()
    run: RunName = RunName()
    params: Params = Params()


class Ui(_Section):
    """Where ``python -m grpo_pipeline.tracking`` serves the store."""

    host: str = "127.0.0.1"
    port: int = Field(5000, ge=1, le=65535)


class MlflowConfig(_Section):
    """All of ``mlflow.yml``; patterns are shell patterns (``*``) over catalogue names, ``metrics`` over metrics."""

    server: Server = Server()
    tracking: Tracking = Tracking()
    ui: Ui = Ui()
    sigterm_grace_seconds: float = Field(
        9.0, gt=0, description="how long SIGTERM is held up to write what is queued"
    )
    inputs: tuple[str, ...] = Field((), description="datasets with a digest, logged as inputs")
    metrics: tuple[str, ...] = Field(
        ("*",), description="metrics of the training rows that are shown as curves"
    )
    artifacts: tuple[str, ...] = Field(
        (), description="datasets whose file is logged when it is saved"
    )
    models: tuple[str, ...] = Field(
        (), description="models logged in the form that MLflow can load and serve, and registered"
    )
    tables: tuple[str, ...] = Field(
        (), description="tables shown in MLflow, in addition to their file"
    )


def parse_config(raw: Mapping[str, Any]) -> MlflowConfig:
    """Check the content of ``mlflow.yml``.

    Raises:
        ValueError: naming the first key that is unknown or has a wrong value.
    """
    try:
        return MlflowConfig.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key, problem = ".".join(map(str, first["loc"])), first["msg"][:1].lower() + first["msg"][1:]
        message = f"mlflow.yml: {key} must follow docs/tracking.md ({problem}), got {first['input']!r}; correct or remove the key"
        raise ValueError(message) from error


PROBE_SECONDS = 10.0
SQLITE = "sqlite:///"
DATABASES = ("postgresql", "mysql", "mssql", "sqlite")
ANY_EXPERIMENT = "/api/2.0/mlflow/experiments/search"
CORRECT = "correct MLFLOW_TRACKING_URI, or server.mlflow_tracking_uri in mlflow.yml"
NO_ADDRESS = (
    "it is no address: write http://<host>:<port> or sqlite:///<file>.db in MLFLOW_TRACKING_URI, or in "
    "server.mlflow_tracking_uri of mlflow.yml"
)
FOLDER = (
    "MLflow has closed its stores in folders: write sqlite:///mlflow.db in MLFLOW_TRACKING_URI, or in "
    "server.mlflow_tracking_uri of mlflow.yml"
)
RIGHTS = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"


def tracking_uri(config: MlflowConfig, project: Path, *, environ: Mapping[str, str]) -> str:
    """Return the store's URI: ``MLFLOW_TRACKING_URI``, else mlflow.yml, else ``mlflow.db`` in the project.

    A relative sqlite path belongs to the project, not to the folder in which the command was started.
    """
    uri = (
        environ.get("MLFLOW_TRACKING_URI")
        or config.server.mlflow_tracking_uri
        or f"{SQLITE}mlflow.db"
    )
    if uri.startswith(SQLITE):
        return f"{SQLITE}{project / uri.removeprefix(SQLITE)}"
    return uri


_used = ""


def use_store(uri: str) -> None:
    """Note the store of the project that this process has opened."""
    global _used
    _used = uri


def used_store() -> str:
    """Return the store of the project that this process has opened last; empty where it has opened none."""
    return _used


def artifact_location(config: MlflowConfig, project: Path, *, uri: str) -> str | None:
    """Return where a new experiment keeps its files; None leaves it to the server."""
    chosen = config.tracking.experiment.create_experiment_kwargs.artifact_location
    if chosen is None:
        return None if is_server(uri) else str(project / "mlruns")
    return chosen if "://" in chosen else str(project / chosen)


def is_server(uri: str) -> bool:
    """Return whether the store is behind HTTP."""
    return uri.startswith(("http://", "https://"))


def redact(uri: str) -> str:
    """Return the URI without user and password; nothing of one that cannot be read."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return "an unreadable address"
    return (
        urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        if "@" in parts.netloc
        else uri
    )


def unusable_reason(uri: str, *, timeout: float = PROBE_SECONDS) -> str | None:
    """Return why the store cannot be used and what helps, or None; takes about ``timeout`` seconds at most.

    A server is asked by MLflow's own request. It imports at its first one what it finds installed, IPython for instance, and
    other libraries look at what is half imported: so the first request is made here, before any node runs.
    """
    if reason := _address_reason(uri):
        return f"cannot be used ({reason})"
    if is_server(uri):
        return _http_reason(uri, timeout=timeout)
    if uri.startswith(SQLITE):
        path = Path(uri.removeprefix(SQLITE).partition("?")[0])
        found = _sqlite_reason(path, timeout=timeout)
        return f"cannot be reached ({found})" if found else None
    return None


def lost_reason(error: BaseException) -> str:
    """Return what became of a store that was in use: it does not answer, or not all was sent to it."""
    from grpo_pipeline.tracking.experiment import NotOpenedError, UnsentError

    if isinstance(error, UnsentError):
        return f"holds a part of this run only ({error})"
    if isinstance(error, NotOpenedError):
        return f"cannot be used ({root_cause(error)})"
    return f"cannot be reached ({root_cause(error)})"


def _address_reason(uri: str) -> str | None:
    """Return what is wrong with an address by itself, or None."""
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return NO_ADDRESS
    if parts.scheme in ("http", "https"):
        return None if host else NO_ADDRESS
    if parts.scheme.startswith("databricks"):
        return None
    if parts.scheme in ("", "file"):
        may_be = os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("true", "1")
        return None if may_be else FOLDER
    is_known = parts.scheme.partition("+")[0] in DATABASES and "://" in uri
    if not is_known or (parts.scheme == "sqlite" and not uri.startswith(SQLITE)):
        return NO_ADDRESS
    return None


def _http_reason(uri: str, *, timeout: float) -> str | None:
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    try:
        answer = http_request(  # type: ignore[no-untyped-call]
            get_default_host_creds(uri),  # type: ignore[no-untyped-call]
            ANY_EXPERIMENT,
            "GET",
            params={"max_results": 1},
            timeout=timeout,
            max_retries=0,
            raise_on_status=False,
        )
    except Exception as error:  # noqa: BLE001 - whatever stands between here and there
        if "timed out" in str(error).lower() or "timeout" in str(error).lower():
            return f"cannot be reached (no answer within {timeout:.0f} s)"
        return f"cannot be reached ({root_cause(error)})"
    return _answer_reason(answer)


def _answer_reason(answer: Any) -> str | None:
    """Return why an answer is none of MLflow's, or None."""
    code, kind = answer.status_code, answer.headers.get("Content-Type", "").partition(";")[0]
    said = f"it answers {code} {answer.reason or ''}".strip()
    try:
        is_document = isinstance(answer.json(), dict)
    except ValueError:
        is_document = False
    if code in (401, 403):
        return f"cannot be used ({said}; {RIGHTS})"
    if code >= 500 or code == 429:
        return f"cannot be used ({said}; see the server's log, or run again later)"
    if code >= 400:
        return f"cannot be used ({said}, as no MLflow server does; {CORRECT})"
    if not is_document:
        page = f"with {kind or 'text'}"
        return f"cannot be used (it answers {page}, as a log-in page or another service does; {CORRECT})"
    return None


def _sqlite_reason(path: Path, *, timeout: float) -> str | None:
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    try:
        with closing(sqlite3.connect(path, timeout=timeout)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("CREATE TABLE probe_of_write_access (x)")
            connection.rollback()
    except sqlite3.Error as error:
        return str(error)
    return None


def root_cause(error: BaseException) -> str:
    """Return the innermost error of a chain in one line: what the operating system said, not what five libraries made of it."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    reason = (
        getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
    )
    return reason if len(reason) <= 160 else f"{reason[:157]}..."


# Create MLflow's sqlite database as a whole or not at all.
#
# MLflow makes the tables of a new database in some hundred migrations, each committed for itself. A kill in the middle leaves a
# database that no later run can open. So the tables are made in a file beside it, which takes its name when it is complete.

PARTIAL = ".partial-"
BESIDE = ("-journal", "-wal", "-shm")  # files of sqlite's own, named after the database


def create_database(uri: str) -> None:
    """Create the database of a sqlite URI where there is none, or an empty file; any other URI is left alone.

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
    """Say whether there is more than an empty file, which is what asking for write access leaves."""
    return path.is_file() and path.stat().st_size > 0


@contextmanager
def _owned(partial: Path) -> Iterator[None]:
    """Create an empty file that other processes see is being written, until this block or the process ends."""
    # Made under a name that nobody sweeps: between creation and lock it would look like what a dead process left.
    hidden = partial.with_name(f".{partial.name}")
    with hidden.open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.replace(hidden, partial)
        yield


def _remove_remains(path: Path) -> None:
    """Remove the partial databases whose process has ended, with what sqlite wrote beside them."""
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
    """Let sqlite not wait for the disk after each of the migrations: nobody reads this file before it is complete.

    On a slow disk a thousand such waits make minutes.
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
