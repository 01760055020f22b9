"""Write the findings of a comparison of many arms: differences per primary metric, and missing trials."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.statistics.changes import change_sentences
from grpo_pipeline.statistics.metric import Metric
from grpo_pipeline.statistics.seed_interval import NOT_COVERED
from grpo_pipeline.statistics.wording import few_clusters_sentences, side_of

# Good direction -> the words for a lower and a higher value than the control's.
SIDES = {"higher": ("worse", "better"), "lower": ("better", "worse"), "none": ("lower", "higher")}


def summary(
    document: Mapping[str, Any], metrics: Mapping[str, Metric], *, chance_rule: str
) -> list[str]:
    """Write which arms differ from the control, then the metrics that changed in each arm, then the failed trials.

    The sentences on primary metrics are corrected for the number of comparisons. The others are not; they state how many metrics
    were compared.

    Args:
        document: ``<task>.compare.result`` without its summary.
        metrics: metrics of the task.
        chance_rule: chance rule of the task's evaluation.
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
    """Write where the resamples are too few for any finding, and which trials are missing from the table."""
    note = document["correction"].get("note")
    lost = [
        f"{key} ({trial['reason']})" for key, trial in document["trials"].items() if trial["reason"]
    ]
    return (
        [f"{note[0].upper()}{note[1:]}."] if note else [],
        [f"Not in the table: {'; '.join(lost)}."] if lost else [],
    )


def metric_sentence(document: Mapping[str, Any], name: str, metric: Metric) -> str:
    """Write which arms are worse and better than the control (lower and higher for a metric without a good direction)."""
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
    # Worse before better; arms that are not shown to differ stand last.
    order = sorted((-1, 1), key=lambda side: words[side], reverse=True)
    parts = [f"{words[side]} {', '.join(arms[side])}" for side in (*order, 0, None) if arms[side]]
    text = "; ".join(parts) or "no arm to compare"
    corrected = document["correction"]["comparisons"]
    how = f", corrected for {corrected} comparisons" if corrected else ""
    return f"{metric.title} against {document['control']}{how}: {text}."
