"""Build the metric that most columns of prediction rows become: their mean."""

from functools import partial

from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.columns import column, has_value
from grpo_pipeline.statistics.metric import UNBOUNDED, Bounds, Direction, Metric


def mean_metric(
    name: str, *, title: str, better: Direction, reason: str, bounds: Bounds = UNBOUNDED
) -> Metric:
    """Build the metric of a column: its mean over the rows that have a value."""
    return Metric(
        title=title,
        better=better,
        reason=reason,
        usable=partial(has_value, name),
        compute=lambda rows, weights: weighted.mean(column(rows, name), weights),
        bounds=bounds,
    )
