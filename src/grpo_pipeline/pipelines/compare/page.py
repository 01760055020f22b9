"""The document and its figures -> one self-contained HTML page."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.pipelines.compare import tables
from grpo_pipeline.pipelines.reporting.page import configuration_text, image_source, template
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.metric import Metric


def render(
    document: Mapping[str, Any],
    metrics: Mapping[str, Metric],
    forests: Mapping[str, bytes],
    *,
    parameters: Mapping[str, Any],
) -> str:
    """Return the page as HTML; every value is escaped.

    Args:
        document: ``<task>.compare.result``.
        metrics: the task's metrics.
        forests: ``<metric>.png`` -> image.
        parameters: all parameters; the task's part is shown.
    """
    primaries = [
        {"table": tables.metric_table(document, name, metrics[name]), "image": image_source(forests[f"{name}.png"])}
        for name in document["primary_metrics"]
    ]
    words = find_task(document["task"]).words
    return template("compare.html").render(
        document=document,
        words=words,
        primaries=primaries,
        explained=words.explanation(rule for rules in document["baselines"].values() for rule in rules),
        baselines=tables.baselines_table(document),
        metrics=tables.all_metrics_table(document, metrics),
        arms=tables.settings_table(document),
        cells=tables.cells_table(document),
        configuration=configuration_text(parameters, document["task"]),
    )
