"""The section ``rewards`` of older versions in today's form: ``reward`` with its terms, and ``reward_pool``."""

from collections.abc import Iterable, Mapping
from typing import Any


def divide_rewards(old: Mapping[str, Any], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Divide a section ``rewards``, or what one changes of its base, into today's two sections.

    A file that named weights named all of them: a term without a weight is null, which takes it away from its base.

    Args:
        old: the section.
        names: the terms that the task has.
    """
    reward: dict[str, Any] = {}
    pool: dict[str, Any] = dict(old.get("pool") or {})
    if "weights" in old:
        weights = dict.fromkeys(names) | dict(old["weights"] or {})
        reward = {name: {"weight": weight} if weight else None for name, weight in weights.items()}
    if "own" in old:
        own = (old["own"] or {}).items()
        reward["own"] = {
            name: term if term and term.get("weight") else None for name, term in own
        } or None
    if failure := old.get("failure"):
        pool["failure"] = (
            failure.get("penalty") if failure.get("rule") == "penalty" else failure["rule"]
        )
    sections = {"reward": reward, "reward_pool": pool}
    return {name: section for name, section in sections.items() if section}
