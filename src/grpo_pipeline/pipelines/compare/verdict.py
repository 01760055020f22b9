"""Plain sentences about the document: what was shown for each primary metric, and what is missing."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.tasks.metric import Metric

ALPHA = 0.05


def verdict(document: Mapping[str, Any], metrics: Mapping[str, Metric]) -> list[str]:
    """Say for each primary metric which arms differ from the control after the correction, then what failed.

    Args:
        document: ``<task>.compare.result`` without its verdict.
        metrics: the task's metrics.
    """
    sentences = [metric_sentence(document, name, metrics[name]) for name in document["primary_metrics"]]
    if note := document["correction"].get("note"):
        sentences.append(f"{note[0].upper()}{note[1:]}.")
    lost = [f"{key} ({cell['reason']})" for key, cell in document["cells"].items() if cell["reason"]]
    return sentences + ([f"Not in the table: {'; '.join(lost)}."] if lost else [])


def metric_sentence(document: Mapping[str, Any], name: str, metric: Metric) -> str:
    """Return which arms lie above and below the control, by the corrected p-value."""
    entries = {arm: found[name] for arm, found in document["differences"].items() if name in found}
    shown = {arm: entry["value"] for arm, entry in entries.items() if entry.get("p_holm", 1.0) < ALPHA}
    above, below = ([arm for arm, value in shown.items() if sign * value > 0] for sign in (1, -1))
    parts = [f"{direction} in {', '.join(arms)}" for direction, arms in (("higher", above), ("lower", below)) if arms]
    text = "; ".join(parts) or "no difference shown in any arm"
    rest = [arm for arm, entry in entries.items() if arm not in shown and "p_holm" in entry]
    text += f"; no difference shown in {', '.join(rest)}" if parts and rest else ""
    unknown = [arm for arm, entry in entries.items() if "p_holm" not in entry]
    text += f"; no statement about {', '.join(unknown)}" if unknown else ""
    corrected = document["correction"]["comparisons"]
    return f"{metric.title} against {document['control']}, corrected for {corrected} comparisons: {text}."
