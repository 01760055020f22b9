"""Which metrics belong to which task: the one place where the evaluation names a task."""

from collections.abc import Callable, Mapping

from grpo_pipeline.tasks.attention import metrics as attention_metrics
from grpo_pipeline.tasks.metric import MetricSuite

SUITES: dict[str, Callable[[Mapping[str, float]], MetricSuite]] = {"attention": attention_metrics.build_suite}


def build_suite(task: str, options: Mapping[str, float]) -> MetricSuite:
    """Return the metrics of a task.

    Raises:
        ValueError: if the task has no metrics.
        pydantic.ValidationError: if an option is unknown to the task.
    """
    if task not in SUITES:
        raise ValueError(f"evaluation.task must be one of {', '.join(SUITES)}, got {task!r}")
    return SUITES[task](options)
