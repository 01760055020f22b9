"""Turn the result of a comparison into tables for people (Markdown, page) and a long CSV table for programs."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from grpo_pipeline.pipelines.reporting.markdown import columns, markdown
from grpo_pipeline.pipelines.reporting.tables import (
    ARROWS,
    Cell,
    Table,
    difference_cell,
    interval_text,
    metric_cell,
    value_cell,
)
from grpo_pipeline.statistics.metric import Metric
from grpo_pipeline.tasks import find_task

Document = Mapping[str, Any]

Metrics = Mapping[str, Metric]

HEADS = ("arm", "mean", "seeds [95% without them]", "difference", "simultaneous", "p", "p, Holm")

IN_SUMMARY = (
    "arm",
    "mean",
    "seeds [95% without them]",
    "difference",
    "p, Holm",
)  # as wide as a terminal; the page and the document have all


def metric_table(document: Document, name: str, metric: Metric) -> Table:
    """Tabulate a primary metric: arms x (mean, spread of the seeds, difference to the control, corrected p-value)."""
    entries = {arm: found["metrics"][name] for arm, found in document["arms"].items()}
    rows = [
        [Cell(arm), value_cell(entry), seeds_cell(entry), *gap_cells(document, arm, name, metric)]
        for arm, entry in entries.items()
    ]
    caption = f"{metric.title} {ARROWS[metric.better]}".strip()
    return Table(
        f"{caption}: mean over the seeds, and difference to {document['control']}",
        list(HEADS),
        rows,
    )


def gap_cells(document: Document, arm: str, name: str, metric: Metric) -> list[Cell]:
    """Return difference, simultaneous interval, p-value and corrected p-value; empty cells for the control."""
    if arm not in document["differences"]:
        return [Cell("control"), Cell(""), Cell(""), Cell("")]
    entry = document["differences"][arm][name]
    if "p_holm" not in entry:
        return [difference_cell(entry, metric), Cell(""), Cell(""), Cell("")]
    together = interval_text({"ci95": entry["ci95_simultaneous"]}, sign="+")
    return [
        difference_cell(entry, metric),
        Cell(together),
        Cell(p_text(entry["p"])),
        Cell(p_text(entry["p_holm"])),
    ]


def seeds_cell(entry: Mapping[str, Any]) -> Cell:
    """Write the least and the largest value of the seeds, their number, and the interval without the luck of training."""
    spread = entry["seeds"]
    if not spread["n"]:
        return Cell("none")
    note = (
        interval_text({"ci95": entry["ci95_clusters"]}, sign="")
        if entry["ci95_clusters"] and spread["n"] > 1
        else ""
    )
    return Cell(f"{spread['min']:.3f} to {spread['max']:.3f} ({spread['n']})", note=note)


def p_text(p: float) -> str:
    """Return a p-value with two significant digits."""
    return "1" if p >= 1 else f"{p:.2g}" if p >= 0.001 else f"{p:.1e}"


def all_metrics_table(document: Document, metrics: Metrics) -> Table:
    """Tabulate every metric: metrics x arms, the mean over the seeds above its interval, not corrected."""
    arms = document["arms"]
    rows = [
        [metric_cell(metric), *(value_cell(found["metrics"][name]) for found in arms.values())]
        for name, metric in metrics.items()
        if any(found["metrics"][name]["value"] is not None for found in arms.values())
    ]
    return Table("All metrics, mean over the seeds", ["metric", *arms], rows)


def baselines_table(document: Document) -> Table:
    """Return other points with an arm's own decoder, or other replies: (arm, rule) x primary metrics."""
    names, words = document["primary_metrics"], find_task(document["task"]).words
    rows = [
        [Cell(arm), Cell(rule), *(value_cell(found["metrics"][name]) for name in names)]
        for arm, rules in document["baselines"].items()
        for rule, found in rules.items()
    ]
    return Table(f"{words.caption}, mean over the seeds", ["arm", words.rule, *names], rows)


def trials_table(document: Document) -> Table:
    """Tabulate how each trial ended."""
    seconds = {
        key: "" if trial["seconds"] is None else f"{trial['seconds']:.1f}"
        for key, trial in document["trials"].items()
    }
    rows = [
        [Cell(key), Cell(trial["status"]), Cell(seconds[key]), Cell(trial["reason"] or "")]
        for key, trial in document["trials"].items()
    ]
    return Table("Trials", ["trial", "status", "seconds", "why it is not in the table"], rows)


def settings_table(document: Document) -> Table:
    """Tabulate the changes of each arm to its base."""
    rows = [
        [
            Cell(arm),
            Cell(found["base"]),
            Cell(found["rule"]),
            Cell("; ".join(change_lines(found["set"])) or "nothing"),
        ]
        for arm, found in document["arms"].items()
    ]
    return Table(
        "Arms",
        ["arm", "base", find_task(document["task"]).words.rule, "what differs from the base"],
        rows,
    )


def change_lines(changes: Mapping[str, Any], *, prefix: str = "") -> Iterator[str]:
    """Yield ``training.epochs = 3`` for each leaf."""
    for name, value in changes.items():
        if isinstance(value, Mapping) and value:
            yield from change_lines(value, prefix=f"{prefix}{name}.")
        elif not (isinstance(value, Mapping) and prefix == ""):
            yield f"{prefix}{name} = {'null' if value is None else value}"


def summary(document: Document, metrics: Metrics) -> str:
    """Return the primary metrics, the baselines and the summary as Markdown, aligned for a terminal."""
    n = document["n"]
    title = (
        f"# {document['task']}: {len(document['arms'])} arms, {document['split']} split, {n['examples']} examples, "
        f"{n['clusters']} clusters by {n['cluster']}, seeds {', '.join(map(str, document['seeds']))}"
    )
    parts = [title]
    for name in document["primary_metrics"]:
        parts.append(markdown(columns(metric_table(document, name, metrics[name]), IN_SUMMARY)))
    if any(document["baselines"].values()):
        parts.append(markdown(baselines_table(document)))
    parts.append("\n".join(f"- {sentence}" for sentence in document["summary"]))
    return "\n\n".join(parts) + "\n"


def long_table(document: Document) -> pd.DataFrame:
    """Build a row per arm, rule and metric: values, intervals, spread of the seeds, difference and p-values."""
    rows = []
    for arm, found in document["arms"].items():
        sections = {found["rule"]: found} | document["baselines"].get(arm, {})
        for rule, section in sections.items():
            gaps = document["differences"].get(arm, {}) if rule == found["rule"] else {}
            for name, entry in section["metrics"].items():
                rows.append(
                    {"arm": arm, "rule": rule, "metric": name, **flat(entry, gaps.get(name))}
                )
    return pd.DataFrame(rows)


def flat(entry: Mapping[str, Any], gap: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the numbers of a value and of its difference; None where there is none."""
    row = {
        "value": entry["value"],
        **ends("ci95", entry),
        **ends("ci95_clusters", entry),
        "n": entry["n"],
    }
    row |= {f"seeds_{key}": entry["seeds"][key] for key in ("n", "sd", "min", "max")}
    gap = gap or {}
    row["difference"] = gap.get("value")
    row |= ends("ci95", gap, prefix="difference_") | ends(
        "ci95_clusters", gap, prefix="difference_"
    )
    row |= ends("ci95_simultaneous", gap, prefix="difference_")
    row |= {
        f"difference_seeds_{key}": gap.get("seeds", {}).get(key)
        for key in ("n", "sd", "min", "max")
    }
    return row | {
        "p": gap.get("p"),
        "p_holm": gap.get("p_holm"),
        "reason": entry.get("reason") or gap.get("reason"),
    }


def ends(key: str, entry: Mapping[str, Any], *, prefix: str = "") -> dict[str, float | None]:
    """Return the two ends of an interval."""
    low, high = entry.get(key) or (None, None)
    return {f"{prefix}{key}_low": low, f"{prefix}{key}_high": high}
