"""Fingerprint a task that has no fingerprint of its own: sections, initial weights and content of the data."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from grpo_pipeline.core.agreement import decisive
from grpo_pipeline.core.storage.weights import digest_of_tensors
from grpo_pipeline.tasks.task_fields import sections_of

REWARD_SECTIONS = ("reward", "rewards")


def fingerprint_of(task: Any, data: Any, *, draws: bool) -> dict[str, Any]:
    """Collect sections, initial weights and content of the data; without draws, the section ``reward(s)`` is left out."""
    sections = {
        name: section
        for name, section in sections_of(task).items()
        if draws or name not in REWARD_SECTIONS
    }
    start = getattr(task, "start", None)
    return {name: decisive(section) for name, section in sections.items()} | {
        "start": None if start is None else digest_of_tensors(start.tensors),
        "examples": digest_of_data(data),
    }


def digest_of_data(data: Any) -> str:
    """Find ``data.digest``, or compute the SHA-256 of all arrays, tensors, tables and texts of the data."""
    known = getattr(data, "digest", None)
    if isinstance(known, str):
        return known
    digest = hashlib.sha256()
    for piece in _pieces(data):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield the content of a tree of dataclasses, mappings and sequences, with the names and shapes that identify it."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, pd.DataFrame):
        yield value.to_json(orient="split", double_precision=15).encode()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes()
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield f"{f.name}:".encode()
            yield from _pieces(getattr(value, f.name))
    elif isinstance(value, Mapping):
        for name in value:
            yield f"{name}:".encode()
            yield from _pieces(value[name])
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _pieces(entry)
    else:
        yield f"{value!r};".encode()
