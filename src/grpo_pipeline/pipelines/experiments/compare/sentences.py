"""Say what a comparison of many arms has shown for each primary metric, and what is missing."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.statistics.changes import change_sentences
from grpo_pipeline.statistics.metric import Metric
from grpo_pipeline.statistics.seed_interval import NOT_COVERED
from grpo_pipeline.statistics.wording import few_clusters_sentences, side_of

# (lower, higher) than the control, in words, by which is better.
SIDES = {"higher": ("worse", "better"), "lower": ("better", "worse"), "none": ("lower", "higher")}


def summary(
    document: Mapping[str, Any], metrics: Mapping[str, Metric], *, chance_rule: str
) -> list[str]:
    """Say which arms differ from the control by primary metric, then of every arm what got worse and better, then what failed.

    The first are corrected for the number of comparisons, the second are not, and say how many metrics were looked at.

    Args:
        document: ``<task>.compare.result`` without its summary.
        metrics: the task's metrics.
        chance_rule: of the task's evaluation.
    """
    sentences = few_clusters_sentences(document["n"])
    if len(document["seeds"]) == 1:
        sentences.append(NOT_COVERED)
    sentences += [
        metric_sentence(document, name, metrics[name]) for name in document["primary_metrics"]
    ]
    correction, lost = notes(document)
    return [
        *sentences,
        *correction,
        *change_sentences(document, metrics, chance_rule=chance_rule),
        *lost,
    ]


def notes(document: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Say where the resamples are too few for any comparison to come out, and which trials are not in the table."""
    note = document["correction"].get("note")
    lost = [
        f"{key} ({trial['reason']})" for key, trial in document["trials"].items() if trial["reason"]
    ]
    return (
        [f"{note[0].upper()}{note[1:]}."] if note else [],
        [f"Not in the table: {'; '.join(lost)}."] if lost else [],
    )


def metric_sentence(document: Mapping[str, Any], name: str, metric: Metric) -> str:
    """Return which arms are worse and better than the control (lower and higher, where neither is better)."""
    lower, higher = SIDES[metric.better]
    words: dict[int | None, str] = {
        -1: f"{lower} in",
        1: f"{higher} in",
        0: "no difference shown in",
        None: "no statement about",
    }
    arms: dict[int | None, list[str]] = {side: [] for side in words}
    for arm, found in document["differences"].items():
        arms[side_of(found.get(name))].append(arm)
    # Worse before better, and what is not shown last.
    order = sorted((-1, 1), key=lambda side: words[side], reverse=True)
    parts = [f"{words[side]} {', '.join(arms[side])}" for side in (*order, 0, None) if arms[side]]
    text = "; ".join(parts) or "no arm to compare"
    corrected = document["correction"]["comparisons"]
    how = f", corrected for {corrected} comparisons" if corrected else ""
    return f"{metric.title} against {document['control']}{how}: {text}."
