"""Show the reward audit on a task's page: its warnings, and its figures as tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_pipeline.pipelines.reporting.tables import ARROWS, Cell, Table, interval_text, value_cell
from grpo_pipeline.statistics.wording import side_of

Document = Mapping[str, Any]
Entry = Mapping[str, Any]
KINDS = {"within": "inside groups", "between": "between examples"}


@dataclass(frozen=True)
class RewardSection:
    """Contents of the section that templates/reward.html lays out.

    Attributes:
        opening: the scored examples, and the point of training.
        warnings: sentences; empty without findings.
        policies: policies x rewards and metrics.
        components: reward components x their share of the variance inside groups.
        agreement: reward and components x metrics.
    """

    opening: str
    warnings: list[str]
    policies: Table
    components: Table
    agreement: Table


def reward_section(document: Document) -> RewardSection:
    """Return the section of a document of the reward audit."""
    n, steps = document["n"], document["warmup_steps"]
    begun = f"after {steps} steps of the control" if steps else "before training"
    opening = f"{n['examples']} examples of the {document['split']} split, {n['clusters']} clusters by {n['cluster']}, {begun}."
    if document["not_computed"]:
        opening += (
            f" Not computed, since they have no weight: {', '.join(document['not_computed'])}."
        )
    return RewardSection(
        opening,
        list(document["warnings"]),
        policies_table(document),
        components_table(document),
        agreement_table(document),
    )


def policies_table(document: Document) -> Table:
    """Return policies x (reward, more than the start, components, metrics)."""
    policies, start = document["policies"], document["start"]
    components, metrics = list(policies[start]["components"]), document["metrics"]
    heads = [
        "policy",
        "role",
        "reward",
        f"reward − {start}",
        *(f"component {component}" for component in components),
    ]
    heads += [f"{metric} {ARROWS[better]}".strip() for metric, better in metrics.items()]
    rows = [
        [
            Cell(name),
            Cell(policy["role"]),
            value_cell(policy["reward"]),
            gap_cell(policy["more_than_start"], policy["role"]),
            *(value_cell(policy["components"][component]) for component in components),
            *(value_cell(policy["metrics"][metric]) for metric in metrics),
        ]
        for name, policy in policies.items()
    ]
    return Table("What each policy is paid", heads, rows)


def gap_cell(gap: Entry | None, role: str) -> Cell:
    """Write a signed difference to the start, marked by role: a ceiling should be above it, a trivial policy should not."""
    if gap is None:
        return Cell("")
    if gap["value"] is None:
        return Cell("undefined", note=gap["reason"].removeprefix("undefined: "))
    tone = ("better" if role == "ceiling" else "worse") if side_of(gap) == 1 else ""
    return Cell(f"{gap['value']:+.3f}", note=interval_text(gap, sign="+"), tone=tone)


def components_table(document: Document) -> Table:
    """Return the components of the reward x (weight, share of the variance, share of groups in which it is constant)."""
    start = document["start"]
    groups = document["policies"][start]["groups"]
    rows = [
        [
            Cell(name),
            Cell(f"{component['weight']:g}"),
            value_cell(component["explained"]),
            Cell(f"{component['constant']:.0%}"),
        ]
        for name, component in groups["components"].items()
    ]
    std = value_cell(groups["std"])
    spread = f"standard deviation of the reward {std.text} {std.note}, {groups['tied']:.0%} of the groups tie"
    heads = ["component", "weight", "share of the variance", "groups in which it is constant"]
    return Table(f"Inside the groups of {start}: {spread}", heads, rows)


def agreement_table(document: Document) -> Table:
    """Return the reward and its components, inside groups and between examples, x metrics: Spearman's rho and Pearson's r."""
    found, metrics = document["agreement"][document["start"]], document["metrics"]
    rows = [
        [
            Cell(f"{scored}, {words}"),
            *(correlation_cell(by_metric[metric][kind]) for metric in metrics),
        ]
        for scored, by_metric in found.items()
        for kind, words in KINDS.items()
    ]
    heads = ["", *(f"{metric} {ARROWS[better]}".strip() for metric, better in metrics.items())]
    return Table(
        f"Do reward and metric go up together? Samples of {document['start']}", heads, rows
    )


def correlation_cell(pair: Mapping[str, Entry]) -> Cell:
    """Return both correlations above the interval of Spearman's and their n."""
    rho, r = pair["spearman"], pair["pearson"]
    if rho["value"] is None or r["value"] is None:
        return Cell(
            "undefined",
            note=str((rho if rho["value"] is None else r)["reason"]).removeprefix("undefined: "),
        )
    return Cell(
        f"ρ {rho['value']:+.2f}, r {r['value']:+.2f}",
        note=f"{interval_text(rho, sign='+')}, n {rho['n']}",
    )
