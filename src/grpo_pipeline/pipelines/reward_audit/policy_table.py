"""Tabulate the document of a reward audit, a row per policy, for a spreadsheet."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from grpo_pipeline.pipelines.reward_audit.warnings import way_to_ceiling


def policy_table(document: Mapping[str, Any]) -> pd.DataFrame:
    """Build a row per policy.

    Columns: ``policy``, ``role``, ``samples`` (per example), ``not_scored``; ``reward`` and ``more_than_start``, each with
    ``_low`` and ``_high`` of its 95% interval; ``way_to_ceiling``; ``reward_<component>``; the metrics; ``group_std`` and
    ``tied_groups``. NaN where undefined.
    """
    return pd.DataFrame(
        [_row(document, name, policy) for name, policy in document["policies"].items()]
    )


def _row(document: Mapping[str, Any], name: str, policy: Mapping[str, Any]) -> dict[str, Any]:
    gap, groups = policy["more_than_start"], policy["groups"]
    row = {
        "policy": name,
        "role": policy["role"],
        "samples": policy["samples"],
        "not_scored": policy["not_scored"],
    }
    row |= _interval("reward", policy["reward"]) | _interval("more_than_start", gap)
    row["way_to_ceiling"] = None if gap is None else way_to_ceiling(document, name)
    row |= {
        f"reward_{component}": entry["value"] for component, entry in policy["components"].items()
    }
    row |= {metric: entry["value"] for metric, entry in policy["metrics"].items()}
    spread = (
        {"group_std": None, "tied_groups": None}
        if groups is None
        else {"group_std": groups["std"]["value"], "tied_groups": groups["tied"]}
    )
    return row | spread


def _interval(name: str, entry: Mapping[str, Any] | None) -> dict[str, float | None]:
    value = None if entry is None else entry["value"]
    low, high = (None, None) if entry is None or entry.get("ci95") is None else entry["ci95"]
    return {name: value, f"{name}_low": low, f"{name}_high": high}
