"""Plain sentences about the document: what was shown for each primary metric, and what is missing."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.pipelines.evaluation.changes import change_sentences
from grpo_pipeline.tasks.metric import Metric

ALPHA = 0.05


# (lower, higher) than the control, in words, by which is better.
SIDES = {"higher": ("worse", "better"), "lower": ("better", "worse"), "none": ("lower", "higher")}


def verdict(document: Mapping[str, Any], metrics: Mapping[str, Metric], *, chance_rule: str) -> list[str]:
    """Say which arms differ from the control by primary metric, then of every arm what got worse and better, then what failed.

    The first are corrected for the number of comparisons, the second are not, and say how many metrics were looked at.

    Args:
        document: ``<task>.compare.result`` without its verdict.
        metrics: the task's metrics.
        chance_rule: of the task's evaluation.
    """
    sentences = [metric_sentence(document, name, metrics[name]) for name in document["primary_metrics"]]
    if note := document["correction"].get("note"):
        sentences.append(f"{note[0].upper()}{note[1:]}.")
    sentences += change_sentences(with_seeds(document), metrics, chance_rule=chance_rule)
    lost = [f"{key} ({cell['reason']})" for key, cell in document["cells"].items() if cell["reason"]]
    return sentences + ([f"Not in the table: {'; '.join(lost)}."] if lost else [])


def with_seeds(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with differences whose ``ci95`` is that over seeds and clusters, where there is one."""

    def widest(entry: Mapping[str, Any]) -> dict[str, Any]:
        return dict(entry) | {"ci95": entry["ci95_with_seeds"] or entry["ci95"]}

    differences = {arm: {name: widest(entry) for name, entry in found.items()} for arm, found in document["differences"].items()}
    return dict(document) | {"differences": differences}


def metric_sentence(document: Mapping[str, Any], name: str, metric: Metric) -> str:
    """Return which arms are worse and better than the control (lower and higher, where neither is better), by the corrected p."""
    entries = {arm: found[name] for arm, found in document["differences"].items() if name in found}
    shown = {arm: entry["value"] for arm, entry in entries.items() if entry.get("p_holm", 1.0) < ALPHA}
    sides = {
        word: [arm for arm, value in shown.items() if sign * value > 0]
        for sign, word in zip((-1, 1), SIDES[metric.better], strict=True)
    }
    parts = [f"{word} in {', '.join(sides[word])}" for word in sorted(sides, reverse=True) if sides[word]]  # worse before better
    text = "; ".join(parts) or "no difference shown in any arm"
    rest = [arm for arm, entry in entries.items() if arm not in shown and "p_holm" in entry]
    text += f"; no difference shown in {', '.join(rest)}" if parts and rest else ""
    unknown = [arm for arm, entry in entries.items() if "p_holm" not in entry]
    text += f"; no statement about {', '.join(unknown)}" if unknown else ""
    corrected = document["correction"]["comparisons"]
    return f"{metric.title} against {document['control']}, corrected for {corrected} comparisons: {text}."
