"""Print the end of a run on the terminal: the answer, the comparison as tables where they are asked for, and where all is."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from grpo_pipeline.statistics.answer import Answer
from grpo_pipeline.tracking.store import redact
from grpo_pipeline.tracking.tracker import Tracker

Entries = Mapping[str, Mapping[str, Any]]
FITTING_COLUMNS = 4  # of values with intervals, beside the names of the metrics, on 120 characters


def answer_parts(answer: Answer) -> Iterator[Table | Text]:
    """Yield the verdict, what stands behind it, and one table: the metrics of the arm that is shown beside its control."""
    yield Text(f"\n{answer.task.capitalize()}: {answer.verdict}", style="bold")
    yield Text(answer.sentence.replace("→", "->"))
    for remark in answer.remarks:
        yield Text(f"- {remark}")
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, name in enumerate((*answer.heads, "")):
        table.add_column(name, justify="left" if place in (0, 4) else "right")
    for row in answer.table:
        values = ["-" if value is None else f"{value:.2f}" for value in (row.before, row.after)]
        table.add_row(row.title, *values, row.gap, row.tone)
    yield table


def comparison_tables(comparison: Mapping[str, Any]) -> Iterator[Table | Text]:
    """Yield the arms with their differences to the control, the baselines, and the summary in words.

    Args:
        comparison: the document ``<task>.comparison``.
    """
    control = comparison["control"]
    arms = {name: scores["metrics"] for name, scores in comparison["arms"].items()}
    columns = {
        name if name != control else f"{name} (control)": entries for name, entries in arms.items()
    }
    differences = {
        f"{name} - {control}": entries
        for name, entries in comparison.get("differences", {}).items()
    }
    yield Text(_title(comparison), style="bold")
    if len(columns) + len(differences) <= FITTING_COLUMNS:
        yield from _table(columns | differences, _metrics(columns | differences), signed=len(arms))
    else:
        yield from _table(columns, _metrics(columns), signed=len(arms))
        yield from _table(differences, _metrics(differences), signed=0)
    baselines = {
        name: scores["metrics"] for name, scores in comparison.get("baselines", {}).items()
    }
    if baselines:
        arm = comparison.get("baseline_arm", control)
        yield Text(f"Other rules beside the policy of {arm}", style="bold")
        headline = comparison.get("headline") or []
        chosen = [name for name in _metrics(baselines) if name in headline] or _metrics(baselines)
        yield from _rules_table(baselines, chosen)
        yield from _answer_table(comparison, arm)
    for sentence in comparison.get("summary", []):
        yield Text(sentence)
    if not_covered := comparison.get("interval", {}).get("not_covered"):
        yield Text(not_covered)


def places(report: Path | None, *, graph: Path | None, tracker: Tracker | None) -> Text:
    """Say where to look next: the page, the graph (a static site, if one was built), and MLflow or why it has nothing."""
    every = "  (every figure; here: --params details=true)"
    lines = [f"Page    {_short(report)}{every}"] if report else []
    lines.append(
        f"Graph   {_short(graph)} (behind a file server; or: make viz)"
        if graph
        else "Graph   make viz"
    )
    if tracker is not None:
        store = f"make mlflow (experiment {tracker.experiment}, {redact(tracker.uri)})"
        lines.append(f"MLflow  {tracker.off or store}")
    return Text("\n" + "\n".join(lines))


def _title(comparison: Mapping[str, Any]) -> str:
    n = comparison.get("n", {})
    clusters = (
        f", {n['clusters']} clusters by {n['cluster']}"
        if "clusters" in n and "cluster" in n
        else ""
    )
    count = f", {n['examples']} examples{clusters}" if "examples" in n else ""
    return f"{comparison['task']}, {comparison.get('split', 'test')} split{count}: value [95% interval]"


def _metrics(columns: Mapping[str, Entries]) -> list[str]:
    return list(dict.fromkeys(metric for entries in columns.values() for metric in entries))


def _table(
    columns: Mapping[str, Entries],
    metrics: Sequence[str],
    *,
    signed: int,
) -> Iterator[Table | Text]:
    """Yield one row per metric that is defined somewhere, and below it what is the same everywhere and why cells are empty.

    The columns from number ``signed`` on are differences.
    """
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("metric", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    constant = []
    for metric in metrics:
        cells = [entries.get(metric) for entries in columns.values()]
        if _is_constant(cells):
            constant.append(f"{metric} {cell_text(cells[0], sign=False, with_interval=False)}")
        elif any(cell and cell.get("value") is not None for cell in cells):
            table.add_row(
                metric,
                *(cell_text(c, sign=i >= signed, with_interval=True) for i, c in enumerate(cells)),
            )
    if table.row_count:
        yield table
    if constant:
        yield Text(f"- the same in every arm and example: {', '.join(constant)}", style="dim")
    for reason, names in reasons(columns, metrics).items():
        yield Text(f"- {', '.join(names)}: {reason}", style="dim")


def _is_constant(cells: Sequence[Mapping[str, Any] | None]) -> bool:
    """Say whether a row compares nothing: the same number in every arm and in every resample, differences of 0."""
    intervals = [cell.get("ci95") if cell else None for cell in cells]
    first = intervals[0]
    if not first or len(cells) < 2:
        return False
    return all(
        interval is not None and (np.allclose(interval, first[0]) or np.allclose(interval, 0.0))
        for interval in intervals
    )


def _rules_table(rules: Mapping[str, Entries], metrics: Sequence[str]) -> Iterator[Table | Text]:
    """Yield one row per rule; one that does not have a metric has a dash there."""
    metrics = [
        name
        for name in metrics
        if any(entries.get(name, {}).get("value") is not None for entries in rules.values())
    ]
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("rule", no_wrap=True)
    for name in metrics:
        table.add_column(name, justify="right")
    for rule, entries in rules.items():
        cells = [cell_text(entries.get(name), sign=False, with_interval=False) for name in metrics]
        table.add_row(rule, *cells)
    yield table


MARKS = {"better": "better", "worse": "worse", "no difference shown": "not shown"}


def _answer_table(comparison: Mapping[str, Any], arm: str) -> Iterator[Table | Text]:
    """Yield one row per other arm and rule: the arm's own policy minus it, and whether it is better, in each judged metric."""
    rows = [
        (f"arm {name}", comparison["own_minus_arms"][name], told)
        for name, told in comparison.get("arm_verdicts", {}).items()
    ]
    rows += [
        (name, comparison["own_minus_baseline"][name], told)
        for name, told in comparison.get("verdicts", {}).items()
    ]
    judged = [
        name
        for name in dict.fromkeys(name for _, _, told in rows for name in told)
        if any(gaps[name]["value"] is not None for _, gaps, _ in rows)
    ]
    if not judged:
        return
    yield Text(f"\n{arm}, its own policy minus each of them, paired", style="bold")
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("arm or rule", no_wrap=True)
    for name in judged:
        table.add_column(f"{arm} - this, {name}", justify="right")
        table.add_column("is it better?")
    for title, gaps, told in rows:
        cells: list[str] = []
        for name in judged:
            entry = gaps[name]
            cells.append(cell_text(entry, sign=True, with_interval=True))
            cells.append("" if entry["value"] is None else MARKS.get(told[name], told[name]))
        table.add_row(title, *cells)
    yield table


def reasons(columns: Mapping[str, Entries], metrics: Sequence[str]) -> dict[str, list[str]]:
    """Return reason -> the metrics that are undefined or have no interval for it, with the columns if it is not all of them."""
    found: dict[str, dict[str, list[str]]] = {}
    for metric in metrics:
        for column, entries in columns.items():
            entry = entries.get(metric)
            if not entry:
                continue
            reason = entry.get("reason")
            if entry.get("value") is None:
                reason = (
                    f"undefined: {str(reason or 'no reason given').removeprefix('undefined: ')}"
                )
            if reason:
                found.setdefault(reason, {}).setdefault(metric, []).append(column)
    return {
        reason: ["every metric"]
        if len(metrics) > 1
        and [*places] == [*metrics]
        and all(len(where) == len(columns) for where in places.values())
        else [
            name if len(where) == len(columns) else f"{name} ({', '.join(where)})"
            for name, where in places.items()
        ]
        for reason, places in found.items()
    }


def cell_text(entry: Mapping[str, Any] | None, *, sign: bool, with_interval: bool) -> str:
    """Return ``0.812 [0.750, 0.874]``, ``-`` where there is no value, nothing where there is no entry."""
    if entry is None:
        return ""
    value, interval = entry.get("value"), entry.get("ci95")
    if value is None:
        return "-"
    form = "{:+.3f}" if sign else "{:.3f}"
    text = form.format(value)
    if with_interval and interval and None not in interval:
        text += f" [{form.format(interval[0])}, {form.format(interval[1])}]"
    return text


def _short(path: Path) -> str:
    """Return a path relative to the current folder, where that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def flow_table(norms: pd.DataFrame) -> str:
    """Return the gradient norm of each loss term (rows) on each component (columns) as text; exact zeros as 0."""
    terms = norms[norms["term"] != "reward"]
    wide = terms.pivot(index="term", columns="component", values="grad_norm")
    wide = wide.loc[terms["term"].unique(), terms["component"].unique()].rename_axis(
        index=None, columns=None
    )
    return str(wide.map(lambda norm: "0" if norm == 0 else f"{norm:.1e}").to_string())


def prediction_text(report: Mapping[str, Any], *, where: Mapping[str, Path]) -> str:
    """Return which model scored how many rows, what to know about it, and where what was written is: name -> file."""
    first = f"{report['scored']} of {report['rows']} rows scored by {report['arm']}, model {report['model']}"
    refused = (
        [f"- {report['quarantined']} rows were refused: quarantine.csv"]
        if report["quarantined"]
        else []
    )
    absent = (
        [f"- not in the manifest: {', '.join(report['absent_columns'])}"]
        if report["absent_columns"]
        else []
    )
    places = [f"{what.capitalize():<8}{_short(path)}" for what, path in where.items()]
    return "\n".join(
        [first, *refused, *absent, *(f"- {note}" for note in report["notes"]), *places]
    )


# The reward audit on the terminal: what each policy is paid, how the start's groups differ, and the warnings.

Document = Mapping[str, Any]
COLUMNS = 120


def reward_audit_text(document: Document, *, is_brief: bool = False) -> str:
    """Return the policies as a table, then the spread inside the start's groups, then the warnings, wrapped.

    With ``is_brief`` the warnings alone, for a run that has more to tell: the tables are on its page.
    """
    n, start = document["n"], document["start"]
    warm = (
        f", after {document['warmup_steps']} steps of the control"
        if document["warmup_steps"]
        else ""
    )
    title = f"{document['split']} split, {n['examples']} examples, {n['clusters']} clusters by {n['cluster']}{warm}"
    sentences = document["warnings"] or ["nothing to warn about"]
    warnings = [fill(f"- {sentence}", COLUMNS, subsequent_indent="  ") for sentence in sentences]
    tables = (
        []
        if is_brief
        else [policies_text(document), *groups_lines(document["policies"][start], start)]
    )
    return "\n".join([title, *tables, *warnings])


def policies_text(document: Document) -> str:
    """Return one line per policy: its role, its mean reward, what it is paid more than the start, and its metrics."""
    rows = {
        name: {
            "role": policy["role"],
            "reward": cell_text(policy["reward"], sign=False, with_interval=False),
            "more than start": cell_text(policy["more_than_start"], sign=True, with_interval=True),
            **{
                metric: cell_text(entry, sign=False, with_interval=False)
                for metric, entry in policy["metrics"].items()
            },
        }
        for name, policy in document["policies"].items()
    }
    return str(pd.DataFrame.from_dict(rows, orient="index").to_string())


def groups_lines(policy: Mapping[str, Any], name: str) -> list[str]:
    """Return how much the samples of one example differ, and which parts make them differ."""
    groups = policy["groups"]
    std = cell_text(groups["std"], sign=False, with_interval=False)
    shares = ", ".join(
        f"{part} {cell_text(found['explained'], sign=False, with_interval=False)}"
        for part, found in groups["components"].items()
    )
    return [
        f"groups of {name}: standard deviation {std}, {groups['tied']:.0%} tied; share of the variance: {shares}"
    ]
