"""Identify the code that made a result: the package's version, torch's, and a digest of the source files, without git."""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

import grpo_pipeline

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
