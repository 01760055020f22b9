"""Identify this process: the code's version, the command line, and marks by which it can be recognised after it died."""

import functools
import getpass
import hashlib
import os
import shlex
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache
from pathlib import Path

import grpo_pipeline

# MLflow's own defaults wait for minutes before they give a server up, print at INFO and report usage.
MLFLOW_DEFAULTS = {
    "DO_NOT_TRACK": "true",
    "KEDRO_DISABLE_TELEMETRY": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_CONFIGURE_LOGGING": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",  # of each request, for each packet of its answer
}


def set_mlflow_defaults(environ: MutableMapping[str, str]) -> None:
    """Make MLflow quiet, quick to give up and silent about its use, in this process; a value that is already set stays."""
    for name, value in MLFLOW_DEFAULTS.items():
        environ.setdefault(name, value)


def source_tags(project: Path, argv: Sequence[str]) -> dict[str, str]:
    """Return who started which command on which code; "unknown" where git or the system does not say."""
    commit, changes = _git(project, "rev-parse", "HEAD"), _git(project, "status", "--porcelain")
    command = command_line(argv)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return {
        "argv": command,
        "git.dirty": "unknown" if changes is None else str(bool(changes.strip())).lower(),
        "mlflow.source.git.commit": (commit or "unknown").strip(),
        "mlflow.source.name": command,
        "mlflow.source.type": "LOCAL",
        "mlflow.user": user,
    }


def _git(project: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(project), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def command_line(argv: Sequence[str]) -> str:
    """Return the command as it would be typed again: ``kedro run …`` for Kedro's entry points."""
    first = Path(argv[0]) if argv and argv[0] else Path("python")
    is_kedro = first.name in ("kedro", "python -m kedro") or first.parts[-2:] == (
        "kedro",
        "__main__.py",
    )
    return shlex.join(["kedro" if is_kedro else first.name, *argv[1:]])


def program() -> list[str]:
    """Return how a new shell in the current folder starts the Kedro of this process: no environment need be activated."""
    script, here = Path(sys.executable).with_name("kedro"), Path.cwd()
    if not script.is_file():
        return [sys.executable, "-m", "kedro"]
    return [str(script.relative_to(here) if script.is_relative_to(here) else script)]


def process_tags() -> dict[str, str]:
    """Return what identifies this process among all that ever ran: host, boot, process namespace, id and start time."""
    pid = os.getpid()
    return {
        **machine_tags(),
        "process.pid": str(pid),
        "process.start": start_time(pid) or "unknown",
    }


@functools.cache
def machine_tags() -> dict[str, str]:
    """Return where process ids are counted: the host, and on Linux its boot and the container's namespace."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    return {
        "process.host": socket.gethostname(),
        "process.boot": boot.read_text().strip() if boot.is_file() else "unknown",
        "process.namespace": os.readlink(namespace) if namespace.is_symlink() else "unknown",
    }


def start_time(pid: int) -> str | None:
    """Return when a process started, in the system's own words; None if there is no such process."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").is_file():
        try:
            # The name in parentheses may hold spaces; field 22 of the line is the 20th after it.
            return stat.read_text().rpartition(")")[2].split()[19]
        except OSError:
            return None
    done = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def is_gone(tags: Mapping[str, str], *, is_local_store: bool) -> bool:
    """Return whether the process that ``process_tags`` described has certainly ended.

    A process of another host or container cannot be seen from here and is taken to run. One of an earlier boot has ended,
    if the store is a local one: hosts that share a server may share their name too.
    """
    here = machine_tags()
    if tags.get("process.host") != here["process.host"]:
        return False
    if tags.get("process.boot") != here["process.boot"]:
        return is_local_store
    if tags.get("process.namespace") != here["process.namespace"]:
        return False
    return start_time(int(tags["process.pid"])) != tags.get("process.start")


# The identity of this process's run: the record of artefacts, the comparison, the page and MLflow name the run by it.

_current = ""


def begin_run() -> str:
    """Give the run that begins an identity, which is not made from the time, and return it."""
    global _current
    _current = uuid.uuid4().hex[:12]
    return _current


def run_identity() -> str:
    """Return the identity of the run that began last in this process; empty where none did."""
    return _current


# The folders whose code decides the weights of a training.
TRAINING_CODE = (
    "core",
    "rewards",
    "statistics",
    "tasks",
    "pipelines/step",
    "pipelines/training",
    "pipelines/data",
)


@cache
def code_version() -> dict[str, str]:
    """Return package, torch and source as a checkpoint names them."""
    import torch  # not above: this module is imported before anything is trained

    return {
        "package": grpo_pipeline.__version__,
        "torch": str(torch.__version__),
        "source": digest_of_sources(Path(grpo_pipeline.__file__).parent, TRAINING_CODE)[:12],
    }


def digest_of_sources(package: Path, names: Sequence[str], *, salt: str = "") -> str:
    """Return the SHA-256 of files and of the Python files in folders, with their places in the package."""
    digest = hashlib.sha256(salt.encode())
    for name in names:
        path = package / name
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(str(file.relative_to(package)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
