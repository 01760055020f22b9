"""Merge the parameters that all tasks share into each task's own section (``conf/base/parameters_tasks.yml``)."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.pipelines.arms import BASE
from grpo_pipeline.pipelines.parameter_merge import merge
from grpo_pipeline.tasks import TASKS, find_task

TASK = "{task}"
# Replaced as a whole: a default arm or component beside the task's own would be another experiment.
WHOLE = (("compare", "arms"), ("cross_validation", "arms"), ("gradient_flow", "expected"))


def with_shared(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the section ``{task}`` into every task's own section, and remove it.

    A section that has a model of the task's own (``TaskSpec.sections``) has no shared part. An arm that has a base has none
    either.

    Args:
        parameters: parameters of the run; they stay unchanged. Without ``{task}`` they come back equal.
    """
    found = {name: value for name, value in parameters.items() if name != TASK}
    shared = parameters.get(TASK)
    if not isinstance(shared, Mapping):
        return found
    for task in TASKS:
        if isinstance(own := found.get(task), Mapping):
            begun = {name: x for name, x in shared.items() if name not in find_task(task).sections}
            for section, key in WHOLE:
                if isinstance(own.get(section), Mapping) and key in own[section]:
                    kept = {name: x for name, x in begun.get(section, {}).items() if name != key}
                    begun[section] = kept
            begun = {
                name: x for name, x in begun.items() if not _goes_out_from_another(own.get(name))
            }
            found[task] = merge(_named(begun, task), own)
    return found


def _goes_out_from_another(arm: Any) -> bool:
    return isinstance(arm, Mapping) and BASE in arm


def _named(value: Any, task: str) -> Any:
    """Replace ``{task}`` by the task's name in a tree."""
    if isinstance(value, str):
        return value.replace(TASK, task)
    if isinstance(value, Mapping):
        return {name: _named(part, task) for name, part in value.items()}
    return [_named(part, task) for part in value] if isinstance(value, list) else value
