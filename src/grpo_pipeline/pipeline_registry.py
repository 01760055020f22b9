"""List the names of all pipelines of the project by task (``tasks.TASKS``); each is built on first use.

Nodes import torch, which a command that only lists pipelines or refuses a parameter does not need
(docs/decisions/0050-pipelines-are-built-when-they-are-used.md).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from kedro.pipeline import Pipeline

from grpo_pipeline.tasks import TASKS, find_task
from grpo_pipeline.tasks.spec import TaskSpec

# Every task has these pipelines under "<task>_<name>", and the pipeline from end to end under its own name.
PIPELINES = (
    "data",
    "train",
    "evaluate",
    "step",
    "gradient_flow",
    "reward_audit",
    "compare",
    "cross_validate",
    "predict",
)
# Without a task, these names mean the first task.
SHORT = ("compare", "cross_validate", "gradient_flow", "reward_audit")


class LazyPipeline(Pipeline):
    """A pipeline that is built on the first access to a part of it."""

    def __init__(self, build: Callable[[], Pipeline]) -> None:
        self._build = build

    def __getattr__(self, name: str) -> Any:
        """Build the pipeline: Python calls this for a missing attribute."""
        if name.startswith("__") or "_build" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        built = self._build()
        del self._build
        vars(self).update(vars(built))
        return getattr(self, name)


def register_pipelines() -> dict[str, Pipeline]:
    """Map name -> pipeline; ``__default__`` is the first task end to end."""
    found: dict[str, Pipeline] = {}
    for task in TASKS:
        names = (task, *(f"{task}_{name}" for name in PIPELINES))
        found |= {name: LazyPipeline(partial(_build, task, name)) for name in names}
    first = next(iter(TASKS))
    short = {name: found[f"{first}_{name}"] for name in SHORT}
    return {"__default__": found[first], **found, **short}


def use_arms(parameters: Mapping[str, Any]) -> None:
    """Set the arms and optional stages of these parameters for pipelines that are used later."""
    from kedro.framework.project import pipelines

    from grpo_pipeline.pipelines.arms import algorithms_of, arms_of, keeping_one

    specs = {task: find_task(task).with_stages_of(parameters.get(task)) for task in TASKS}
    chosen = {
        task: (
            replace(spec, keeping_one=keeping_one(spec, parameters)),
            arms_of(spec, parameters),
            algorithms_of(spec, parameters),
        )
        for task, spec in specs.items()
    }
    if chosen != _chosen:
        _chosen.clear()
        _chosen.update(chosen)
        _pipelines.cache_clear()
        pipelines.configure(__name__)


# task -> its spec with the stages that are on, its arms, and their algorithms; once the parameters of a run are known
_chosen: dict[str, tuple[TaskSpec, Mapping[str, tuple[str, ...]], Mapping[str, Any]]] = {}


def _build(task: str, name: str) -> Pipeline:
    return _pipelines(task)[name]


@cache
def _pipelines(task: str) -> dict[str, Pipeline]:
    from grpo_pipeline.pipelines.of_task import task_pipelines  # imports torch

    return task_pipelines(*_chosen.get(task, (find_task(task), None)))
