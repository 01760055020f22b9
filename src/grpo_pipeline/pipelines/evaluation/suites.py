"""Which metrics belong to which task: the one place where the evaluation names a task."""

from collections.abc import Callable, Mapping
from importlib import import_module

from grpo_pipeline.tasks.metric import MetricSuite

# Imported when asked for: each task has libraries of its own, and the others must run without them.
SUITES = {task: f"grpo_pipeline.tasks.{task}.metrics" for task in ("attention", "dialogue", "molecules")}


def build_suite(task: str, options: Mapping[str, float]) -> MetricSuite:
    """Return the metrics of a task.

    Raises:
        ValueError: if the task has no metrics.
        pydantic.ValidationError: if an option is unknown to the task.
    """
    if task not in SUITES:
        raise ValueError(f"evaluation.task must be one of {', '.join(SUITES)}, got {task!r}")
    build: Callable[[Mapping[str, float]], MetricSuite] = import_module(SUITES[task]).build_suite
    return build(options)
