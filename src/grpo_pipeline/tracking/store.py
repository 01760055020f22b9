"""Find the MLflow store, and check that it answers."""

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from grpo_pipeline.tracking.addresses import is_server
from grpo_pipeline.tracking.mlflow_config import MlflowConfig

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

_used = ""


def tracking_uri(config: MlflowConfig, project: Path, *, environ: Mapping[str, str]) -> str:
    """Find the store's URI: ``MLFLOW_TRACKING_URI``, else mlflow.yml, else ``mlflow.db`` in the project.

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


def use_store(uri: str) -> None:
    """Record the project's store that this process has opened."""
    global _used
    _used = uri


def used_store() -> str:
    """Name the project's store that this process has opened last; "" if there is none."""
    return _used


def unusable_reason(uri: str, *, timeout: float = PROBE_SECONDS) -> str | None:
    """Find why the store cannot be used, with a remedy, or None; takes about ``timeout`` seconds at most.

    A server gets a request of MLflow's own. MLflow's first request imports optional libraries such as IPython, and other
    libraries may see them half imported. So the first request is made here, before any node runs.
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
    """Write the reason for losing a store: it does not answer, or not all entries were sent."""
    from grpo_pipeline.tracking.experiment import NotOpenedError
    from grpo_pipeline.tracking.writer import UnsentError

    if isinstance(error, UnsentError):
        return f"holds a part of this run only ({error})"
    if isinstance(error, NotOpenedError):
        return f"cannot be used ({root_cause(error)})"
    return f"cannot be reached ({root_cause(error)})"


def _address_reason(uri: str) -> str | None:
    """Find the error in an address itself; None if it is valid."""
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
    """Find why an answer is not MLflow's; None if it is."""
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
    """Write the innermost error of a chain in a line: the operating system's message without those of libraries around it."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    reason = (
        getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
    )
    return reason if len(reason) <= 160 else f"{reason[:157]}..."
