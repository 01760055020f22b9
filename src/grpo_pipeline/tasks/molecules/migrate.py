"""Sections of older versions in today's form, by name (``grpo_pipeline.migrate``)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from grpo_pipeline.core.storage.weights import without_deleted
from grpo_pipeline.rewards.migrate import divide_rewards
from grpo_pipeline.tasks.molecules.diffusion.params import DELETED
from grpo_pipeline.tasks.molecules.rewards.params import MoleculeReward


def divide(old: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Divide a section ``rewards``, or what one changes of its base, into ``reward`` and ``reward_pool``."""
    found = divide_rewards(old, MoleculeReward.names())
    reward = found.get("reward", {})
    for name in ("logp", "size", "wanted", "forbidden"):
        given = old.get(name)
        if given and reward.get(name, {}) is not None:  # a window without a weight was not read
            keys = given if isinstance(given, Mapping) else {"patterns": given}
            reward[name] = {**reward.get(name, {}), **keys}
    if invalid := old.get("invalid"):
        reward["invalid_penalty"] = invalid.get("penalty")
    return found | ({"reward": reward} if reward else {})


def migrate_data(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section ``data``, or what one changes of its base, in today's form; today's form comes back equal."""
    old = {name: value for name, value in old.items() if name != "workers"}  # changed no result
    if isinstance(old.get("source"), Mapping):
        return old
    kind = old.get("source")
    source = {"kind": kind} if kind else {}
    if kind in (None, "csv"):
        source |= old.get("columns") or {}
    kept = {name: value for name, value in old.items() if name not in OLD["data"]}
    return ({"source": source} if source else {}) | kept


SECTIONS = {
    "data": migrate_data,
    **{name: partial(without_deleted, deleted=gone) for name, gone in DELETED.items()},
}
"""Section -> what returns it in today's form."""
DIVIDED = {"rewards": divide}
"""Section that there is no more -> what returns the sections in its place."""
OLD = {
    "data": {"source", "columns", "workers"},
    **{name: {*gone} for name, gone in DELETED.items()},
}
"""Section -> names that it has not today, or not with such a value."""
