"""Cache of results that are the same for every arm of a run: the first arm computes them, the others take them."""

from collections.abc import Callable, Hashable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar, cast

from grpo_pipeline.core.params import ExecutionParams

Value = TypeVar("Value")


class Kept:
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
            f'the library {name} must be installed for this task, got no such module; run pip install -e ".[{extra}]"', name=name
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # an import hook refuses it, or None stands in its place in sys.modules
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
            raise ValueError(f"{task}.training.{name} must be {only}, got {value}; the models of this task know no other")
