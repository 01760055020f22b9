"""Merge parameters, replacing some as a whole: who names the weights of the rewards gets these, and no defaults beside them.

Elsewhere an environment, ``--params`` or an arm of a comparison names what differs from the defaults, and the rest stays.
"""

from collections.abc import Mapping
from typing import Any

# Paths inside the parameters of a task.
REPLACED = ("rewards.weights", "rewards.own")


def without_replaced(
    base: Mapping[str, Any], change: Mapping[str, Any], *, depth: int
) -> dict[str, Any]:
    """Return the base without what is replaced as a whole and the change names.

    Args:
        base: what the change is merged onto; it stays as it is.
        change: nested like the base.
        depth: how many names lead to the parameters of a task: 0 for these themselves, 1 where tasks have names.
    """
    if depth:
        return {
            name: without_replaced(below, change[name], depth=depth - 1)
            if _are_mappings(below, change.get(name))
            else below
            for name, below in base.items()
        }
    kept = dict(base)
    for path in REPLACED:
        section, key = path.split(".")
        if _are_mappings(kept.get(section), change.get(section)) and key in change[section]:
            kept[section] = {name: value for name, value in kept[section].items() if name != key}
    return kept


def _are_mappings(*values: Any) -> bool:
    return all(isinstance(value, Mapping) for value in values)


def merge(base: Mapping[str, Any], change: Mapping[str, Any], *, depth: int = 0) -> dict[str, Any]:
    """Merge nested mappings; whatever is not a mapping on both sides is replaced, by ``None`` too, and so is ``REPLACED``.

    ``depth`` is that of ``without_replaced``.
    """
    merged: dict[str, Any] = _merge(without_replaced(base, change, depth=depth), change)
    return merged


def _merge(base: Any, change: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(change, Mapping)):
        return change
    return {**base, **{name: _merge(base.get(name), value) for name, value in change.items()}}
