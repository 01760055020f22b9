"""Read the version of the code: its commit, and a digest of the sources that affect trained weights."""

import getpass
import hashlib
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import grpo_pipeline
from grpo_pipeline.runs.process import command_line

# The folders whose code affects trained weights.
TRAINING_CODE = (
    "core",
    "rewards",
    "statistics",
    "tasks",
    "pipelines/step",
    "pipelines/training",
)


def source_tags(project: Path, argv: Sequence[str]) -> dict[str, str]:
    """Collect the user, the command and the code's version; "unknown" where git or the system has no answer."""
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


@cache
def code_version() -> dict[str, str]:
    """Name package, torch and source for a checkpoint."""
    import torch  # not above: this module is imported before anything is trained

    return {
        "package": grpo_pipeline.__version__,
        "torch": str(torch.__version__),
        "source": digest_of_sources(Path(grpo_pipeline.__file__).parent, TRAINING_CODE)[:12],
    }


def digest_of_sources(package: Path, names: Sequence[str], *, salt: str = "") -> str:
    """Compute the SHA-256 of files and of the Python files in folders, with their places in the package."""
    digest = hashlib.sha256(salt.encode())
    for name in names:
        path = package / name
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(str(file.relative_to(package)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
