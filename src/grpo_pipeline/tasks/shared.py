"""Parts that tasks share: how examples are stored, a cache of what is the same for every arm, libraries of extras."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, cast

from grpo_pipeline.core.params import ExecutionParams

if TYPE_CHECKING:  # a process that measures rewards imports this module and needs neither
    import numpy as np
    import pandas as pd

Value = TypeVar("Value")


@dataclass(frozen=True)
class Stored:
    """Examples of a task as they are kept in a folder.

    A class of examples has ``stored() -> Stored`` and a class method ``restored(Stored)``, which raises ValueError where the
    parts are not what was saved; one whose chunks are saved before the digest is known has ``digest_of(Stored)`` as well.

    Attributes:
        tables: by name; ``table`` has a row per example.
        arrays: by name; each has a row per example, of a chunk fewer.
        meta: what JSON can hold, among it the ``digest`` of all of it.
        start: row of the table that owns the first row of the arrays.
        is_last: whether they end with the last one.
    """

    tables: "Mapping[str, pd.DataFrame]"
    arrays: "Mapping[str, np.ndarray]"
    meta: Mapping[str, Any]
    start: int = 0
    is_last: bool = True


# Results that are the same for every arm of a run: the first arm computes them, the others take them.


class Cache:
    """Values by what they were computed from.

    A task holds one for what the start does with held-out prompts: each arm is measured beside it, with the same noise.
    A copy of a task with something replaced, such as its start, has an empty one of its own (the field has ``init=False``).
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[object, Any]] = {}

    def take(self, data: object, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return what ``compute`` returned when it was first asked for with this data set and this key.

        Args:
            data: compared by identity, and held, so that no other object gets its identity.
            key: everything else that the value depends on.
            compute: called once for each pair of the two.
        """
        pair = (id(data), key)
        if pair not in self._values:
            self._values[pair] = (data, compute())
        return cast(Value, self._values[pair][1])


# Libraries that only some tasks need: imported when they are used, and asked for by the name of their extra.


def library(name: str, *, extra: str) -> Any:
    """Import a module of a library that an extra brings, ``sacrebleu.metrics.bleu`` of ``dialogue`` for example.

    Raises:
        ModuleNotFoundError: one sentence with the remedy, if the library is not installed.
    """
    _require(name.partition(".")[0], extra)
    return import_module(name)


def require(*names: str, extra: str) -> None:
    """Check that libraries are installed, without importing them: before a long run, not inside it.

    Raises:
        ModuleNotFoundError: as ``library``, for the first that is missing.
    """
    for name in names:
        _require(name, extra)


def _require(name: str, extra: str) -> None:
    if not _is_there(name):
        raise ModuleNotFoundError(
            f'the library {name} must be installed for this task, got no such module; run pip install -e ".[{extra}]"',
            name=name,
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (
        ModuleNotFoundError,
        ValueError,
    ):  # an import hook refuses it, or None stands in its place in sys.modules
        return False


# Options of the step that only image encoders have, refused for the other tasks.

PLAIN = {"compile": "none", "memory_format": "contiguous", "activation_checkpointing": "none"}


def check_plain(execution: ExecutionParams, *, task: str) -> None:
    """Refuse compilation, another memory format and activation checkpointing.

    Raises:
        ValueError: naming the option.
    """
    for name, only in PLAIN.items():
        if (value := getattr(execution, name)) != only:
            raise ValueError(
                f"{task}.training.{name} must be {only}, got {value}; the models of this task know no other"
            )
