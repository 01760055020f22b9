"""Format the comparison document as tables for the page's template."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from grpo_pipeline.statistics.bar import bar_sentences
from grpo_pipeline.statistics.metric import Direction, Metric, MetricSuite
from grpo_pipeline.statistics.wording import tone_of
from grpo_pipeline.tasks.spec import Wording

Entry = Mapping[str, Any]

ARROWS = {"higher": "↑", "lower": "↓", "none": ""}

LONGEST_TEXT = 300


@dataclass(frozen=True)
class Cell:
    """Text of one cell.

    Attributes:
        text: the value.
        note: the interval, or the reason why there is none; it is shown smaller below the value.
        tone: "better", "worse" or "" (no difference shown, or no direction).
    """

    text: str
    note: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """A table: caption, column heads and rows; the first cell of a row is its head."""

    caption: str
    heads: list[str]
    rows: list[list[Cell]]


def arms_table(
    comparison: Mapping[str, Any], metrics: Mapping[str, Metric], *, words: Wording
) -> Table:
    """Return metrics x (arms, differences to the control, gains over the chance rule)."""
    control, differences, gains = (
        comparison["control"],
        comparison["differences"],
        comparison["policy_gain"],
    )
    gaining = [arm for arm in differences if arm in gains]
    heads = ["metric", "n", *comparison["arms"], *(f"{arm} − {control}" for arm in differences)]
    rows = [
        [
            metric_cell(metric),
            Cell(str(comparison["arms"][control]["metrics"][name]["n"])),
            *(value_cell(scores["metrics"][name]) for scores in comparison["arms"].values()),
            *(difference_cell(entries[name], metric) for entries in differences.values()),
            *(difference_cell(gains[arm][name], metric) for arm in gaining),
        ]
        for name, metric in metrics.items()
    ]
    caption = f"Arms on the {comparison['split']} split, {words.drawn}"
    return Table(caption, heads + [f"{arm}: {words.gain}" for arm in gaining], rows)


def baselines_table(
    comparison: Mapping[str, Any], metrics: Mapping[str, Metric], *, words: Wording
) -> Table:
    """Return metrics x rules, all of the baseline arm; its own policy stands first."""
    arm = comparison["baseline_arm"]
    columns = {"policy": comparison["arms"][arm], **comparison["baselines"]}
    rows = [
        [metric_cell(metric), *(value_cell(column["metrics"][name]) for column in columns.values())]
        for name, metric in metrics.items()
        if any(
            column["metrics"][name]["value"] is not None
            for column in comparison["baselines"].values()
        )
    ]
    return Table(f"{words.rules} {arm}", ["metric", *columns], rows)


def rivals_parts(
    comparison: Mapping[str, Any], suite: MetricSuite, *, words: Wording
) -> dict[str, Any]:
    """Build the parts of the block "rivals" of every page: the table, and the sentences about the bar if there is one."""
    return {
        "rivals": rivals_table(comparison, suite, words=words),
        "bar": bar_sentences(comparison, suite.bar, suite.metrics),
    }


def rivals_table(comparison: Mapping[str, Any], suite: MetricSuite, *, words: Wording) -> Table:
    """Tabulate the other arms and rules x (role, how it chooses; for each judged metric its value and own − its value)."""
    arm, bar = comparison["baseline_arm"], suite.bar
    metrics = {name: suite.metrics[name] for name in suite.judged}
    heads = [
        text
        for metric in metrics.values()
        for text in (metric_cell(metric).text, f"{arm} − this", "is it better?")
    ]
    own = comparison["arms"][arm]["metrics"]
    # The policy itself.
    first = [cell for name in metrics for cell in (value_cell(own[name]), Cell(""), Cell(""))]
    rows = [[Cell(f"{arm}, its own policy"), Cell(""), *first]]
    for other, gaps in comparison["own_minus_arms"].items():
        role = "control" if other == comparison["control"] else "arm"
        values, told = comparison["arms"][other]["metrics"], comparison["arm_verdicts"][other]
        cells = answer_cells(metrics, values, gaps, told)
        rows.append([Cell(other, note=words.choices.get(other, "")), Cell(role), *cells])
    for rule, gaps in comparison["own_minus_baseline"].items():
        role = "instead" if bar is None else bar.role(rule)
        values, told = comparison["baselines"][rule]["metrics"], comparison["verdicts"][rule]
        cells = answer_cells(metrics, values, gaps, told)
        rows.append([Cell(rule, note=words.choices.get(rule, "")), Cell(role), *cells])
    return Table(
        f"{arm}, the other arms, and what one would try instead", ["", "role", *heads], rows
    )


def answer_cells(
    metrics: Mapping[str, Metric],
    values: Mapping[str, Entry],
    gaps: Mapping[str, Entry],
    told: Mapping[str, str],
) -> list[Cell]:
    """Write, for each metric, the value, the policy's own value minus it, and the verdict; a dash where undefined."""
    cells: list[Cell] = []
    for name, metric in metrics.items():
        if values[name]["value"] is None:
            cells += [Cell("–"), Cell(""), Cell("")]
        else:
            cells += [value_cell(values[name]), difference_cell(gaps[name], metric)]
            cells.append(Cell(told[name]))
    return cells


def metric_cell(metric: Metric) -> Cell:
    """Return a row's head: the metric's name and the direction that is good."""
    return Cell(f"{metric.title} {ARROWS[metric.better]}".strip())


def value_cell(entry: Entry) -> Cell:
    """Return a value above its interval."""
    if entry["value"] is None:
        return Cell("undefined", note=entry["reason"].removeprefix("undefined: "))
    return Cell(f"{entry['value']:.3f}", note=interval_text(entry, sign=""))


def difference_cell(entry: Entry, metric: Metric) -> Cell:
    """Write a signed difference; it is marked only if it is shown and the metric has a good direction."""
    if entry["value"] is None:
        return Cell("undefined", note=entry["reason"].removeprefix("undefined: "))
    return Cell(
        f"{entry['value']:+.3f}",
        note=interval_text(entry, sign="+"),
        tone=mark_of(entry, metric.better),
    )


def mark_of(entry: Entry, better: Direction, *, neutral: float = 0.0) -> str:
    """Find the tone of a difference: "better", "worse" or "", by the decision of every verdict."""
    tone = tone_of(entry, better, neutral=neutral)
    return "" if tone == "same" else tone


def interval_text(entry: Entry, *, sign: str) -> str:
    """Write ``[low, high]``, with its method if all resamples are equal, or why there is no interval."""
    if entry["ci95"] is None:
        return str(entry["reason"])
    low, high = entry["ci95"]
    alike = "note" in entry
    how = "" if not alike else " exact" if low < high else " no variation"
    return f"[{low:{sign}.3f}, {high:{sign}.3f}]{how}"


def facts_table(caption: str, facts: Mapping[str, Any]) -> Table:
    """Return a nested document as rows of dotted name and value."""
    return Table(
        caption,
        ["what", "value"],
        [[Cell(name), Cell(shorten(value))] for name, value in flatten(facts).items()],
    )


def frame_table(caption: str, frame: pd.DataFrame, *, limit: int) -> Table:
    """Return the first ``limit`` rows of a data frame; the caption says how many there are."""
    rows = [
        [Cell(shorten(value)) for value in row]
        for row in frame.head(limit).astype(object).itertuples(index=False)
    ]
    total = (
        f"{caption}: {len(frame)}"
        if len(frame) <= limit
        else f"{caption}: {len(frame)}, the first {limit} are shown"
    )
    return Table(total, [str(name) for name in frame.columns], rows)


def flatten(facts: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Return ``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for name, value in facts.items():
        path = f"{prefix}{name}"
        flat |= (
            flatten(value, prefix=f"{path}.")
            if isinstance(value, Mapping) and value
            else {path: value}
        )
    return flat


def shorten(value: Any) -> str:
    """Write a value as text; a long text is cut and shows its length."""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return (
        text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} … ({len(text)} characters)"
    )
