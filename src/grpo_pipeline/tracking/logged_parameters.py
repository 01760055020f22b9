"""Choose the parameters that a run logs: those that it reads and that differ from the defaults."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from kedro.pipeline import Pipeline
from pydantic import TypeAdapter, ValidationError

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.pipelines.params import sections
from grpo_pipeline.tasks import TASKS, find_task
from grpo_pipeline.tracking.flat_parameters import flatten


def is_within(name: str, paths: Iterable[str]) -> bool:
    """Check whether a flat name is one of the paths, or lies below one."""
    return any(name == path or name.startswith(f"{path}.") for path in paths)


def run_parameters(
    flat: Mapping[str, str], defaults: Mapping[str, str], *, read: Collection[str]
) -> dict[str, str]:
    """Select the parameters that a run's nodes read and whose values are not the defaults."""
    return {
        name: value
        for name, value in flat.items()
        if is_within(name, read) and defaults.get(name) != value
    }


def arm_parameters(
    flat: Mapping[str, str],
    changed: Mapping[str, str],
    *,
    task: str,
    arm: str,
    arms: Collection[str],
) -> dict[str, str]:
    """Select the parameters that distinguish an arm: changed settings, and own ones in which other arms differ.

    The arm's own section is renamed from ``<task>.<arm>`` to ``<task>.arm`` so that two arms differ in values, not in names,
    when they are compared. Other tasks and the sections of other arms are left out.

    Args:
        flat: all parameters, by ``flatten`` with dots.
        changed: those of the run, by ``run_parameters``.
        task: the task's name.
        arm: the arm's name.
        arms: all arms of the run.
    """
    own = {
        name: {
            path.removeprefix(f"{task}.{name}."): value
            for path, value in flat.items()
            if path.startswith(f"{task}.{name}.")
        }
        for name in {arm, *arms}
    }
    own_sections = [f"{task}.{name}" for name in own]
    shared = {
        name: value
        for name, value in changed.items()
        if not is_within(name, own_sections) and ("." not in name or is_within(name, [task]))
    }
    told = {
        f"{task}.arm.{path}": value
        for path, value in own[arm].items()
        if f"{task}.{arm}.{path}" in changed or any(o.get(path) != value for o in own.values())
    }
    return shared | told


def parameters_read(pipeline: Pipeline, tasks: Iterable[str], *, is_grid: bool) -> set[str]:
    """List the paths of the parameters that a pipeline's nodes name; a grid of trials reads all of its tasks' parameters."""
    inputs = pipeline.inputs()
    named = {name.removeprefix("params:") for name in inputs if name.startswith("params:")}
    everything = {*tasks} if is_grid and "parameters" in inputs else set()
    # The threads are set before any node runs; whether a run resumes has no effect on its result.
    return (named | everything | {"threads"}) - {"resume"}


def resolved_sections(section: Mapping[str, Any], task: str, base: str) -> dict[str, str]:
    """Flatten an arm's sections with the defaults of their models; a section that its model refuses is left out.

    Args:
        section: parameters of the task, by section.
        task: name of the task.
        base: name of the arm.
    """
    if task not in TASKS:
        return {}
    given = {**section, **section.get(base, {})}
    models = {**sections(find_task(task)), "algorithm": AlgorithmParams}
    found: dict[str, Any] = {}
    for name in models.keys() & given.keys():
        with suppress(ValidationError):
            found[name] = TypeAdapter(models[name]).validate_python(given[name])
    return flatten(found)
