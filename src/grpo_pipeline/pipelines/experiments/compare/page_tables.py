"""Lay out the tables of the page of a comparison."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.pipelines.experiments.compare.tables import (
    Document,
    Metrics,
    all_metrics_table,
    baselines_table,
    metric_table,
    settings_table,
    trials_table,
)
from grpo_pipeline.tasks import find_task


def page_parts(
    document: Document, metrics: Metrics, forests: Mapping[str, bytes]
) -> dict[str, Any]:
    """Build the parts of compare.html: tables, and the forests of the primary metrics in their order.

    Args:
        document: ``<task>.compare.result``.
        metrics: the task's metrics.
        forests: ``<metric>.svg`` -> drawing.
    """
    words, primary = find_task(document["task"]).words, document["primary_metrics"]
    return {
        "words": words,
        "forests": {f"{place:02d}": forests[f"{name}.svg"] for place, name in enumerate(primary)},
        "primaries": [metric_table(document, name, metrics[name]) for name in primary],
        "explained": words.explanation(
            rule for rules in document["baselines"].values() for rule in rules
        ),
        "baselines": baselines_table(document),
        "metrics": all_metrics_table(document, metrics),
        "arms": settings_table(document),
        "trials": trials_table(document),
    }
