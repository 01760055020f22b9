"""Which names parameters may have, and a sentence about one that nothing reads."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

DEPTH = 2  # deeper names are refused by the model of their section
CHOICES = ("never", "auto")
PREFIX = "params:"


def check_names(given: Mapping[str, Any], base: Mapping[str, Any], read: Iterable[str], *, others: Iterable[str]) -> None:
    """Refuse a parameter that no pipeline reads and conf/base does not have: it would change nothing.

    Args:
        given: all parameters of the run.
        base: those of conf/base.
        read: names of datasets that pipelines read, ``params:…`` among them.
        others: names that are no parameters and may be given as one on the command line: those of globals.yml.

    Raises:
        ValueError: naming the first one and what may be meant; also if ``resume`` is none of its choices.
    """
    sections = {name.removeprefix(PREFIX) for name in read if name.startswith(PREFIX)}
    known = {path for name in sections for path in beginnings(name)} | set(paths(base))
    for path in paths(given):
        if path not in known and not path.startswith("_"):
            parent = path.rpartition(".")[0]
            close = get_close_matches(path, [*(name for name in known if name.rpartition(".")[0] == parent), *others], n=1)
            meant = f"did you mean {close[0]}?" if close else "remove it or correct its name"
            raise ValueError(f"{path} must be a parameter of this project, got an unknown name; {meant}")
    if (resume := given.get("resume", CHOICES[0])) not in CHOICES:
        raise ValueError(f"resume must be never or auto, got {resume!r}; use --params resume=auto to go on from a checkpoint")


def paths(parameters: Mapping[str, Any], *, depth: int = DEPTH) -> Iterator[str]:
    """Yield the dotted names of parameters down to a depth, a name before what it holds."""
    for name, value in parameters.items():
        yield str(name)
        if depth > 1 and isinstance(value, Mapping):
            yield from (f"{name}.{path}" for path in paths(value, depth=depth - 1))


def beginnings(name: str) -> Iterator[str]:
    """Yield ``a``, ``a.b`` and so on of a dotted name."""
    parts = name.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
