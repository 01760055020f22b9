"""Where the MLflow store is, and whether it answers."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from grpo_pipeline.tracking.config import MlflowConfig

PROBE_SECONDS = 3.0
SQLITE = "sqlite:///"


def tracking_uri(config: MlflowConfig, project: Path, *, environ: Mapping[str, str]) -> str:
    """Return the store's URI: ``MLFLOW_TRACKING_URI``, else mlflow.yml, else ``mlflow.db`` in the project.

    A relative sqlite path belongs to the project, not to the folder in which the command was started.
    """
    uri = environ.get("MLFLOW_TRACKING_URI") or config.server.mlflow_tracking_uri or f"{SQLITE}mlflow.db"
    if uri.startswith(SQLITE):
        return f"{SQLITE}{project / uri.removeprefix(SQLITE)}"
    return uri


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
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else uri


def unreachable_reason(uri: str, *, timeout: float = PROBE_SECONDS) -> str | None:
    """Return why the store cannot be used, in a few words, or None; takes about ``timeout`` seconds at most."""
    if is_server(uri):
        return _http_reason(uri, timeout=timeout)
    if uri.startswith(SQLITE):
        return _sqlite_reason(Path(uri.removeprefix(SQLITE).partition("?")[0]), timeout=timeout)
    return None


def _http_reason(uri: str, *, timeout: float) -> str | None:
    """Any HTTP answer will do: what the server says is for the first real call."""
    import requests

    try:
        requests.get(f"{uri.rstrip('/')}/health", timeout=timeout, allow_redirects=False, stream=True).close()
    except requests.exceptions.SSLError:
        return None
    except requests.exceptions.Timeout:
        return f"no answer within {timeout:.0f} s"
    except (requests.exceptions.RequestException, ValueError) as error:
        return root_cause(error)
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
    reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
    return reason if len(reason) <= 160 else f"{reason[:157]}..."
