"""Find the preparation of a task by the task's name."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import Any

from grpo_pipeline.pipelines.experiments.trials.preparation import TaskPreparation, resplit_table
from grpo_pipeline.pipelines.experiments.trials.stage_training import with_stages
from grpo_pipeline.pipelines.training.stages import create_preparation
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.spec import TaskSpec


def find_preparation(task: str) -> TaskPreparation:
    """Build the preparation of a task; its own ``adapt_preparation`` may change the general one.

    Raises:
        ValueError: if there is no such task.
    """
    spec = find_task(task)
    wiring, stages = spec.wiring(), (*spec.optional_stages, *spec.stages)
    preparation = TaskPreparation(
        task=task,
        prepare=create_preparation(spec, stages),
        resplit=partial(resplit, spec),
    )
    preparation = with_stages(preparation, stages) if stages else preparation
    adapted: TaskPreparation = (
        wiring.adapt_preparation(preparation)
        if hasattr(wiring, "adapt_preparation")
        else preparation
    )
    return adapted


def resplit(spec: TaskSpec, examples: Any, split: Mapping[str, str]) -> Any:
    """Give the examples another split; an example without an entry gets no split."""
    table = resplit_table(examples.table, split, key=spec.key, noun=spec.noun)
    return (
        resolve_name(spec.with_table)(examples, table)
        if spec.with_table
        else replace(examples, table=table)
    )
