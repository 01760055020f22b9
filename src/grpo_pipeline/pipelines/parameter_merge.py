"""Merge parameters; some sections are replaced as a whole.

An environment, ``--params`` or an arm of a comparison names its differences from the defaults. Two kinds of sections are
replaced: the weights of the rewards, and a part of a model by a part of another ``kind``, which has other keys.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Paths inside the parameters of a task.
REPLACED = (("rewards", "weights"), ("rewards", "own"))
# Below this section, wherever it stands, each section is of one kind.
MODEL = "model"

Path = tuple[str, ...]


def merge(base: Mapping[str, Any], change: Mapping[str, Any], *, depth: int = 0) -> dict[str, Any]:
    """Merge nested mappings. Any other value is replaced, also by ``None``.

    The paths that ``replaced`` yields are replaced, too; ``depth`` is that of ``replaced``.
    """
    merged: dict[str, Any] = _merge(without(base, replaced(base, change, depth=depth)), change)
    return merged


def replaced(
    base: Mapping[str, Any], change: Mapping[str, Any], *, depth: int, above: Path = ()
) -> Iterator[Path]:
    """Yield the paths that a change replaces as a whole.

    Args:
        base: parameters that the change is merged onto.
        change: nested like the base.
        depth: number of names above the parameters of a task: 0 for these themselves, 1 for parameters by task.
        above: names above both.
    """
    for name, old in base.items():
        path, new = (*above, name), change.get(name)
        if name in change and path[depth:] in REPLACED:
            yield path
        elif isinstance(old, Mapping) and isinstance(new, Mapping):
            if MODEL in above and "kind" in old and new.get("kind", old["kind"]) != old["kind"]:
                yield path
            else:
                yield from replaced(old, new, depth=depth, above=path)


def without(base: Mapping[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    """Remove some paths from the base, as far as they exist; the base itself stays unchanged."""
    kept = dict(base)
    for first, *rest in paths:
        if not rest:
            kept.pop(first, None)
        elif isinstance(kept.get(first), Mapping):
            kept[first] = without(kept[first], [tuple(rest)])
    return kept


def _merge(base: Any, change: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(change, Mapping)):
        return change
    return {**base, **{name: _merge(base.get(name), value) for name, value in change.items()}}
