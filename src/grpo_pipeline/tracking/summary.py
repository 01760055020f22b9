"""The end of a run on the terminal: the comparison as a table, whatever it says, and where everything is."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from grpo_pipeline.tracking.store import redact
from grpo_pipeline.tracking.tracker import Tracker

Entries = Mapping[str, Mapping[str, Any]]


def comparison_tables(comparison: Mapping[str, Any]) -> Iterator[Table | Text]:
    """Yield the arms with their differences to the control, the baselines, and the verdict in words.

    Args:
        comparison: the document ``<task>.comparison``.
    """
    control = comparison["control"]
    arms = {name: scores["metrics"] for name, scores in comparison["arms"].items()}
    columns = {name if name != control else f"{name} (control)": entries for name, entries in arms.items()}
    columns |= {f"{name} - {control}": entries for name, entries in comparison.get("differences", {}).items()}
    yield Text(_title(comparison), style="bold")
    yield _table(columns, signed=len(arms))
    baselines = {name: scores["metrics"] for name, scores in comparison.get("baselines", {}).items()}
    if baselines:
        arm = comparison.get("baseline_arm", control)
        yield Text(f"Baselines, scored by the model of {arm}", style="bold")
        yield _table(baselines, signed=len(baselines), with_interval=False)
    for sentence in comparison.get("verdict", []):
        yield Text(sentence)


def places(report: Path | None, *, tracker: Tracker | None) -> Text:
    """Return where to look next: the page, the graph, the MLflow store and the runs in it."""
    lines = [f"Page    {_short(report)}"] if report else []
    lines.append("Graph   make viz")
    if tracker is not None:
        lines += mlflow_lines(tracker)
    return Text("\n" + "\n".join(lines))


def mlflow_lines(tracker: Tracker) -> list[str]:
    """Return what MLflow holds of this run, or why it holds nothing."""
    if tracker.off:
        return [f"MLflow  {tracker.off}"]
    ids = [f"{name or 'run'} {run}" for name, run in tracker.run_ids.items() if run]
    return [f"MLflow  make mlflow (experiment {tracker.experiment}, {redact(tracker.uri)})", *(f"        {line}" for line in ids)]


def _title(comparison: Mapping[str, Any]) -> str:
    n = comparison.get("n", {})
    clusters = f", {n['clusters']} clusters by {n['cluster']}" if "clusters" in n and "cluster" in n else ""
    count = f", {n['examples']} examples{clusters}" if "examples" in n else ""
    return f"{comparison['task']}, {comparison.get('split', 'test')} split{count}: value [95% interval]"


def _table(columns: Mapping[str, Entries], *, signed: int, with_interval: bool = True) -> Table:
    """Return one row per metric; the columns from number ``signed`` on are differences."""
    table = Table(header_style="bold")
    table.add_column("metric")
    for name in columns:
        table.add_column(name, justify="right")
    for metric in dict.fromkeys(metric for entries in columns.values() for metric in entries):
        cells = [entries.get(metric) for entries in columns.values()]
        texts = [cell_text(cell, sign=i >= signed, with_interval=with_interval) for i, cell in enumerate(cells)]
        table.add_row(metric, *_once(texts))
    return table


def cell_text(entry: Mapping[str, Any] | None, *, sign: bool, with_interval: bool) -> str:
    """Return ``0.812 [0.750, 0.874]``, ``undefined: reason`` where there is no value, nothing where there is no entry."""
    if entry is None:
        return ""
    value, interval = entry.get("value"), entry.get("ci95")
    if value is None:
        return f"undefined: {entry.get('reason', 'no reason given')}"
    form = "{:+.3f}" if sign else "{:.3f}"
    text = form.format(value)
    if with_interval and interval and None not in interval:
        text += f" [{form.format(interval[0])}, {form.format(interval[1])}]"
    return text


def _once(texts: Sequence[str]) -> list[str]:
    """Say a reason in the first cell only that has it."""
    return [
        "undefined" if text.startswith("undefined") and text in texts[:position] else text for position, text in enumerate(texts)
    ]


def _short(path: Path) -> str:
    """Return a path relative to the current folder, where that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
