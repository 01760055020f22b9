"""Align the prediction tables of arms and rules, so that row i is the same example in all of them."""

from collections.abc import Mapping
from hashlib import sha256

import numpy as np
import pandas as pd

from grpo_pipeline.statistics.metric import MetricSuite, Unit

Rules = dict[str, pd.DataFrame]


def align_arms(
    arms: Mapping[str, pd.DataFrame], suite: MetricSuite, *, headline: str, cluster: str
) -> dict[str, Rules]:
    """Check every arm's predictions and split them by rule. Row i is the same unit in each table.

    Args:
        arms: arm -> prediction rows (docs/<task>/artefacts.md).
        suite: the task's metrics; names the columns that must be there.
        headline: the rule that every arm must have.
        cluster: column of the units that are resampled together.

    Raises:
        ValueError: a column or the headline rule is missing, a unit is repeated, a required value is NaN, or two tables differ in
            their units, facts or clusters. The sentence names the arm's catalogue entry.
    """
    tables = {arm: split_rules(rows, suite, arm=arm, cluster=cluster) for arm, rows in arms.items()}
    first_arm = next(iter(tables))
    # Every table is held against the first arm's headline rule, so that all of them agree with each other.
    for arm, rules in tables.items():
        if headline not in rules:
            raise ValueError(
                f"predictions of {arm} must hold the rule {headline!r}, got {sorted(rules)}; predict again"
            )
        for rule, rows in rules.items():
            check_same_units(
                rows,
                tables[first_arm][headline],
                who=f"{arm} / {rule}",
                unit=suite.unit,
                cluster=cluster,
            )
    return tables


def split_rules(rows: pd.DataFrame, suite: MetricSuite, *, arm: str, cluster: str) -> Rules:
    """Split an arm's rows by rule, in the order of the report; the rows of each rule are sorted by id."""
    check_columns(rows, (*suite.required, cluster), arm=arm)
    key, rows = suite.unit.column, suite.combine(rows)
    named = rows.assign(**{key: rows[key].astype(str)}).sort_values(
        ["rule", key], kind="stable", ignore_index=True
    )
    check_rows(named, suite.finite, arm=arm, unit=suite.unit)
    prepared = suite.prepare(named)
    parts = {
        str(rule): part.reset_index(drop=True) for rule, part in prepared.groupby("rule", sort=True)
    }
    return {
        rule: parts[rule]
        for rule in (*suite.rules, *sorted(parts.keys() - set(suite.rules)))
        if rule in parts
    }


def check_columns(rows: pd.DataFrame, required: tuple[str, ...], *, arm: str) -> None:
    """Raise ValueError if a column is missing or the table is empty."""
    missing = [name for name in required if name not in rows.columns]
    if missing:
        raise ValueError(
            f"predictions of {arm} must have the columns {', '.join(required)}, got none named {missing[0]!r}"
        )
    if rows.empty:
        raise ValueError(
            f"predictions of {arm} must hold at least one row, got none; check the test split"
        )


def check_rows(rows: pd.DataFrame, finite: tuple[str, ...], *, arm: str, unit: Unit) -> None:
    """Raise ValueError if a unit is repeated inside a rule or a value that every metric needs is not finite."""
    repeated = rows.duplicated(["rule", unit.column])
    if repeated.any():
        row = rows[repeated].iloc[0]
        raise ValueError(
            f"predictions of {arm} must hold a {unit.noun} once per rule, got {row[unit.column]!r} twice in {row['rule']!r}"
        )
    for name in finite:
        bad = ~np.isfinite(rows[name].to_numpy(dtype=np.float64, na_value=np.nan))
        if bad.any():
            row = rows[bad].iloc[0]
            raise ValueError(
                f"{name} in the predictions of {arm} must be finite, got {row[name]} for {unit.noun} {row[unit.column]!r} "
                f"under the rule {row['rule']!r}; look at this arm's training metrics"
            )


def check_same_units(
    rows: pd.DataFrame, reference: pd.DataFrame, *, who: str, unit: Unit, cluster: str
) -> None:
    """Raise ValueError unless both tables hold the same units with the same facts and cluster, in the same order."""
    here, there, noun = set(rows[unit.column]), set(reference[unit.column]), unit.noun
    if here != there:
        raise ValueError(
            f"predictions of {who} must hold the same {noun}s as the other arms, got {len(here)} {noun}s against {len(there)} "
            f"({noun} {min(here ^ there)!r} is on one side only); evaluate all arms on one split"
        )
    for name in (*unit.facts, cluster):
        differs = rows[name].to_numpy() != reference[name].to_numpy()
        if differs.any():
            found = rows[unit.column][differs].iloc[0]
            raise ValueError(
                f"{name} of {noun} {found!r} must be the same in all arms, got another value in {who}; predict again"
            )


def digest_of_units(rows: pd.DataFrame, *, unit: Unit, cluster: str) -> str:
    """Compute a digest of the scored units: their names, facts and clusters, in any order."""
    columns = list(dict.fromkeys((unit.column, *unit.facts, cluster)))
    facts = sorted(rows[columns].astype(str).itertuples(index=False, name=None))
    return sha256(repr(facts).encode()).hexdigest()[:12]
