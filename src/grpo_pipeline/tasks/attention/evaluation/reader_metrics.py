"""Compare the model with a reader's score."""

from dataclasses import replace

from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.metric import Metric
from grpo_pipeline.tasks.attention.data.table_columns import READER_COLUMN
from grpo_pipeline.tasks.attention.evaluation.ranking_metrics import ranking_metric
from grpo_pipeline.tasks.attention.evaluation.targets import has_prob, label_target


def reader_metrics() -> dict[str, Metric]:
    """Return what compares with a reader's score, on the cores that have one: its AUROC, the model's there, and the difference.

    Both are computed on the same resamples of whole patients, so that the interval of the difference is a paired one.
    """
    reason = "needs a positive and a negative core with a reader's score"
    reader = ranking_metric(
        weighted.auroc,
        label_target,
        score=READER_COLUMN,
        title="AUROC of the reader's score",
        reason=reason,
    )
    own = replace(
        ranking_metric(
            weighted.auroc, label_target, title="AUROC where a reader has scored", reason=reason
        ),
        usable=lambda rows: has_prob(rows) & reader.usable(rows),
    )
    return {
        "reader_auroc": replace(reader, better="none"),
        "auroc_where_read": own,
        "auroc_minus_reader": replace(
            own,
            title="AUROC minus that of the reader's score",
            compute=lambda rows, weights: (
                own.compute(rows, weights) - reader.compute(rows, weights)
            ),
            bounds=(-1.0, 1.0),
        ),
    }
