"""Merge parameters; a section of another kind is replaced as a whole.

An environment, ``--params`` or an arm of a comparison names its differences from the defaults. A section with another ``kind``
has other keys, so that it takes the place of the base's; so does an advantage with another ``method``. Kinds of surrogates,
schedules and executors share their keys: these are merged.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Sections that are merged whatever their kind, with all below them that another key does not tell apart.
MERGED = {"algorithm", "training", "executor"}
TAGS = {"advantage": "method"}

Path = tuple[str, ...]


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings. Any other value is replaced, also by ``None``, and so are the paths that ``replaced`` yields."""
    merged: dict[str, Any] = _merge(without(base, replaced(base, change)), change)
    return merged


def replaced(
    base: Mapping[str, Any], change: Mapping[str, Any], *, tag: str | None = "kind"
) -> Iterator[Path]:
    """Yield the paths of the base that a change, nested like it, replaces as a whole.

    Args:
        base: a section.
        change: the same section of what is put onto it.
        tag: the key that tells sections of one name apart; None where all of them are merged.
    """
    for name, old in base.items():
        new = change.get(name)
        if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
            continue
        below = None if name in MERGED else tag
        own = TAGS.get(name, below)
        if own in old and new.get(own, old[own]) != old[own]:
            yield (name,)
        else:
            yield from ((name, *path) for path in replaced(old, new, tag=below))


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
