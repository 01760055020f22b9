"""Sections of older versions in today's form, by name (``grpo_pipeline.migrate``)."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.rewards.migrate import divide_rewards


def migrate_language_model(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section ``language_model``, or what one changes of its base, in today's form; today's form comes back equal.

    In a file the sections ``new`` and ``folder`` stood beside each other; in an exported model one of them stood flat.
    """
    if not old.keys() & OLD["language_model"]:
        return dict(old)
    flat = {name: value for name, value in old.items() if name not in OLD["language_model"]}
    is_folder = old.get("source") == "folder" or (old.get("folder") and "new" not in old)
    network = flat | dict(old.get("folder" if is_folder else "new") or {})
    kind = "folder" if is_folder else network.pop("architecture", old.get("architecture"))
    if kind:
        network = {"kind": kind, **network}
    if network.get("max_positions", ...) is None:
        del network["max_positions"]
    found: dict[str, Any] = {"network": network} if network else {}
    if "lora" in old:
        found["tuning"] = old["lora"] and {"kind": "lora", **old["lora"]}
    return found


def migrate_data(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section ``data``, or what one changes of its base, in today's form; today's form comes back equal."""
    if isinstance(old.get("source"), Mapping):
        return dict(old)
    kind = old.get("source")
    source = {"kind": kind} if kind else {}
    if kind != "generated" and "stories_from" in old:
        source["stories_from"] = old["stories_from"]
    if kind not in ("generated", "conversations") and "splits_from" in old:
        source["splits_from"] = old["splits_from"]
    if kind in (None, "conversations"):
        source |= old.get("conversations") or {}
    kept = {name: value for name, value in old.items() if name not in OLD["data"]}
    return ({"source": source} if source else {}) | kept


def migrate_retrieval(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section ``retrieval``, or what one changes of its base, in today's form; today's form comes back equal."""
    if isinstance(old.get("encoder"), Mapping):
        return dict(old)
    kind = old.get("encoder")
    encoder = {"kind": kind} if kind else {}
    if kind != "tfidf":
        encoder |= old.get("dense") or {}
    kept = {name: value for name, value in old.items() if name not in OLD["retrieval"]}
    return kept | ({"encoder": encoder} if encoder else {})


TERMS = ("f1", "rouge_l", "bleu")
"""Terms of the reward when it was a section ``rewards``."""
SECTIONS = {
    "language_model": migrate_language_model,
    "data": migrate_data,
    "retrieval": migrate_retrieval,
}
"""Section -> what returns it in today's form."""
DIVIDED = {"rewards": lambda old: divide_rewards(old, TERMS)}
"""Section that there is no more -> what returns the sections in its place."""
OLD = {
    "language_model": {"source", "new", "folder", "lora", "architecture"},
    "data": {"source", "stories_from", "splits_from", "conversations"},
    "retrieval": {"encoder", "dense"},
}
"""Section -> names that it has not today, or not with such a value."""
