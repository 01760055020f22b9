"""Find a reward function by its import path, and prepare it before its first chunk.

It must be a pure function of each sample and what it reads beside it: calls are cut into chunks, repeated samples are measured
once, and values are cached.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from grpo_pipeline.rewards.quoting import quote_error

RewardFunction = Callable[..., Sequence[float]]
Function = TypeVar("Function", bound=Callable[..., Any])


def load_function(path: str) -> RewardFunction:
    """Import the function that "package.module:function" names.

    Raises:
        ValueError: if the path is not of that form, or names nothing importable and callable.
    """
    module_name, colon, name = path.partition(":")
    if not (
        colon and all(part.isidentifier() for part in [*module_name.split("."), *name.split(".")])
    ):
        raise ValueError(
            f"a reward function must be named package.module:function, got {path!r}; correct the path"
        )
    if module_name == "__main__":
        raise ValueError(
            f"a reward function must be in an importable module, got {path!r}; move it into a file of its own"
        )
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"the reward function {path!r} must be importable, got {quote_error(error)}; correct the path"
        ) from error
    if not callable(found):
        raise ValueError(
            f"the reward function {path!r} must be callable, got a {type(found).__name__}; name a function"
        )
    function: RewardFunction = found
    return function


def prepared_by(prepare: Callable[[], object]) -> Callable[[Function], Function]:
    """Mark a reward function with a function that does its imports and reads, called when a process loads it.

    Imports at the first call would use up the time limit of a chunk, and might fail on a busy machine.
    """

    def mark(function: Function) -> Function:
        function.__dict__["prepare"] = prepare
        return function

    return mark


def prepare(path: str) -> None:
    """Import a function and run its preparation, before its first chunk.

    Raises:
        ValueError: as ``load_function``, or if the preparation raises.
    """
    function = load_function(path)
    try:
        getattr(function, "prepare", _nothing)()
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"the reward function {path!r} must be able to prepare, got {quote_error(error)}; correct it"
        ) from error


def _nothing() -> None:
    """Do nothing, for a function without preparation."""


def shorten(text: str, *, limit: int = 80) -> str:
    """Quote a text for a sentence, shortened if it is long."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}… ({len(text)} characters)"
