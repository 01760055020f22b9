"""Import libraries that only some tasks need, and name the missing extra in errors."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def library(name: str, *, extra: str) -> Any:
    """Import a module of a library that an extra installs, such as ``sacrebleu.metrics.bleu`` of ``dialogue``.

    Raises:
        ModuleNotFoundError: one sentence with the remedy, if the library is not installed.
    """
    _require(name.partition(".")[0], extra)
    return import_module(name)


def require(*names: str, extra: str) -> None:
    """Check that libraries are installed without importing them, so that a long run fails at its start.

    Raises:
        ModuleNotFoundError: as ``library``, for the first that is missing.
    """
    for name in names:
        _require(name, extra)


def _require(name: str, extra: str) -> None:
    if not _is_there(name):
        raise ModuleNotFoundError(
            f"the library {name} must be installed for this task, got no such module; "
            f'run pip install -e ".[{extra}]", or install the wheel with its extra {extra}',
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
