"""Print the end of a run on the terminal: the answer, on request the comparison as tables, and the places of all results."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from grpo_pipeline.pipelines.reporting import markdown, tables
from grpo_pipeline.statistics.answer import Answer
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tracking.addresses import redact
from grpo_pipeline.tracking.tracker import Tracker

COLUMNS, GAP = 120, 3  # letters of a line, and between two columns of a table


def answer_parts(answer: Answer) -> Iterator[Table | Text]:
    """Yield the verdict, its reasons, and a table: the metrics of the shown arm beside its control."""
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


def comparison_parts(
    comparison: Mapping[str, Any], options: Mapping[str, float]
) -> Iterator[Table | Text]:
    """Yield the tables of the page, and its sentences.

    Args:
        comparison: the document ``<task>.comparison``.
        options: of the task's metrics, ``<task>.evaluation.metric_options``.
    """
    spec = find_task(comparison["task"])
    known = comparison["arms"][comparison["control"]]["metrics"]
    suite = spec.build_suite(options).for_names(known)
    metrics = {name: metric for name, metric in suite.metrics.items() if name in known}
    yield from table_parts(tables.arms_table(comparison, metrics, words=spec.words))
    yield from table_parts(tables.baselines_table(comparison, metrics, words=spec.words))
    yield from table_parts(tables.rivals_table(comparison, suite, words=spec.words))
    for sentence in comparison["summary"]:
        yield Text(sentence)
    if not_covered := comparison["interval"].get("not_covered"):
        yield Text(not_covered)


def table_parts(table: tables.Table) -> Iterator[Table | Text]:
    """Yield a table of the page in parts that fit the width, and the reasons of empty cells."""
    yield Text(f"\n{table.caption}", style="bold")
    for places in fitting_places(table):
        drawn = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for place in places:
            drawn.add_column(Text(table.heads[place]), justify="right" if place else "left")
        for row in table.rows:
            drawn.add_row(*(Text(markdown.cell_text(row[place])) for place in places))
        yield drawn
    empty: dict[str, dict[str, None]] = {}  # reason -> rows, each once
    for first, *others in table.rows:
        for cell in others:
            if cell.note and not markdown.holds_interval(cell):
                empty.setdefault(cell.note, {})[first.text] = None
    for reason, names in empty.items():
        every = len(names) == len(table.rows) > 1
        yield Text(f"- {'every row' if every else ', '.join(names)}: {reason}", style="dim")


def fitting_places(table: tables.Table) -> Iterator[list[int]]:
    """Yield the places of the columns of each part of a table: the first column, and as many others as fit in COLUMNS.

    A head may break at its spaces, a cell may not.
    """
    texts = [
        [markdown.cell_text(row[place]) for row in table.rows] for place in range(len(table.heads))
    ]
    widths = [
        GAP + max(map(len, (*cells, *head.split(), "")))
        for head, cells in zip(table.heads, texts, strict=True)
    ]
    part = [0]
    for place in range(1, len(widths)):
        if len(part) > 1 and sum(widths[one] for one in (*part, place)) > COLUMNS:
            yield part
            part = [0]
        part.append(place)
    yield part


def places(report: Path | None, *, graph: Path | None, tracker: Tracker | None) -> Text:
    """Write where to look next: the page, the graph (a static site, if one was built), and MLflow or its problem."""
    every = "  (every figure; here: --params details=true)"
    lines = [f"Page    {_short(report)}{every}"] if report else []
    lines.append(
        f"Graph   {_short(graph)} (behind a file server; or: grpo ui graph)"
        if graph
        else "Graph   grpo ui graph"
    )
    if tracker is not None:
        store = f"grpo ui (experiment {tracker.experiment}, {redact(tracker.uri)})"
        lines.append(f"MLflow  {tracker.off or store}")
    return Text("\n" + "\n".join(lines))


def cell_text(entry: Mapping[str, Any] | None, *, sign: bool, with_interval: bool) -> str:
    """Write ``0.812 [0.750, 0.874]``, ``-`` without a value, "" without an entry."""
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
    """Write a path relative to the current folder, if that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def flow_table(norms: pd.DataFrame) -> str:
    """Write the gradient norm of each loss term (rows) on each component (columns) as text; exact zeros as 0."""
    terms = norms[norms["term"] != "reward"]
    wide = terms.pivot(index="term", columns="component", values="grad_norm")
    wide = wide.loc[terms["term"].unique(), terms["component"].unique()].rename_axis(
        index=None, columns=None
    )
    return str(wide.map(lambda norm: "0" if norm == 0 else f"{norm:.1e}").to_string())


def prediction_text(report: Mapping[str, Any], *, where: Mapping[str, Path]) -> str:
    """Write the model and the number of scored rows, notes on them, and the written files: name -> file."""
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
