"""Build the metrics of the attention task, each computed from the prediction rows of one arm and one point rule.

Definitions, directions and the rule for "undefined" are in docs/metrics.md.
"""

from collections.abc import Iterable, Mapping

from grpo_pipeline.statistics.metric import Bar, Metric, MetricSuite, Unit
from grpo_pipeline.tasks.attention.data.table_columns import (
    CLASS_COLUMN,
    FINDINGS_COLUMN,
    READER_COLUMN,
)
from grpo_pipeline.tasks.attention.evaluation.attention_metrics import (
    add_prob_shift,
    attention_metrics,
)
from grpo_pipeline.tasks.attention.evaluation.class_metrics import (
    CLASS_AUROC,
    CLASS_PROB,
    EXPECTED,
    FINDING_AUROC,
    KAPPA,
    class_metrics,
    class_names,
    finding_metrics,
)
from grpo_pipeline.tasks.attention.evaluation.frames import combine_frames
from grpo_pipeline.tasks.attention.evaluation.mask_metrics import mask_metrics
from grpo_pipeline.tasks.attention.evaluation.metric_options import MetricOptions
from grpo_pipeline.tasks.attention.evaluation.probability_metrics import probability_metrics
from grpo_pipeline.tasks.attention.evaluation.ranking_metrics import ranking_metrics
from grpo_pipeline.tasks.attention.evaluation.reader_metrics import reader_metrics
from grpo_pipeline.tasks.attention.evaluation.reward_metrics import reward_metrics
from grpo_pipeline.tasks.attention.evaluation.summary import summary

REQUIRED = (
    *("core_id", "patient_id", "label", "involvement", "grade_group", "rule"),
    *(
        "prob",
        "heatmap_prob",
        "prob_std",
        "reward",
        "reward_class",
        "reward_heatmap",
        "lesion_hit",
        "lesion_coverage",
    ),
    "points_used",
)
RULES = (
    *(
        "policy",
        "start",
        "greedy",
        "uniform",
        "centre",
        "fixed",
        "constant",
        "blobs",
        "none",
        "oracle",
    ),
    *("shuffled", "pooled", "heatmap", "picture", "texture", "cnn", "attention_cnn", "unet"),
)


def build_metrics(options: MetricOptions) -> dict[str, Metric]:
    """Return every metric of the task by name, in the order of the report."""
    return (
        ranking_metrics(options)
        | probability_metrics(options)
        | attention_metrics()
        | reward_metrics()
    )


def further_metrics(names: Iterable[str]) -> Mapping[str, Metric]:
    """Return the metrics that not every run has: of a reader's score, of prompted masks, of classes, of findings.

    ``names`` are columns of prediction rows, or metrics. Metrics of all classes or findings alone (``accuracy``) come without
    those of each, and only to be named: which classes there are is not known before there are rows.
    """
    found = list(names)
    further = reader_metrics() if {READER_COLUMN, *reader_metrics()} & set(found) else {}
    further |= mask_metrics() if set(mask_metrics()) & set(found) else {}
    if findings := class_names(
        found, prefix=CLASS_PROB if FINDINGS_COLUMN in found else FINDING_AUROC
    ):
        return further | finding_metrics(findings)
    if (set(finding_metrics(())) - {"auroc_macro"}) & set(found):
        return further | finding_metrics(())
    # Columns where there are rows, else the metrics of an earlier document.
    is_rows = CLASS_COLUMN in found
    classes = class_names(found, prefix=CLASS_PROB if is_rows else CLASS_AUROC)
    ordinal = (EXPECTED if is_rows else KAPPA) in found
    if classes or set(class_metrics((), ordinal=True)) & set(found):
        further |= class_metrics(classes, ordinal=ordinal)
    return further


METRICS: dict[str, Metric] = build_metrics(MetricOptions())


def build_suite(options: Mapping[str, float]) -> MetricSuite:
    """Return what the evaluation needs of this task; ``options`` are the fields of MetricOptions.

    Raises:
        pydantic.ValidationError: if an option is unknown or out of range.
    """
    return MetricSuite(
        unit=Unit("core_id", noun="core", facts=("label",)),
        metrics=build_metrics(MetricOptions.model_validate(dict(options))),
        rules=RULES,
        required=REQUIRED,
        finite=("label", "prob"),
        combine=combine_frames,
        prepare=add_prob_shift,
        summary=summary,
        discover=further_metrics,
        headline=(
            "auroc",
            "average_precision",
            "brier",
            "lesion_hit",
            "lesion_hit_ratio",
            "reward",
        ),
        bar=Bar(
            metrics=("auroc", "lesion_hit"),
            shuffled="shuffled",
            fixed=("centre", "fixed", "constant", "blobs"),
            ceilings=("oracle",),
            unmoved="a fixed detector, not learned",
        ),
    )
