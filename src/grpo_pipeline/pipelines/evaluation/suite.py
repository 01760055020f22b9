"""Find the metrics of a task by its name."""

from collections.abc import Mapping

from grpo_pipeline.statistics.metric import MetricSuite
from grpo_pipeline.tasks import find_task


def build_suite(task: str, options: Mapping[str, float]) -> MetricSuite:
    """Return the metrics of a task.

    Raises:
        ValueError: if there is no such task.
        pydantic.ValidationError: if an option is unknown to the task.
    """
    suite: MetricSuite = find_task(task).build_suite(options)
    return suite
