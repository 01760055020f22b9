"""Prepare a task and its data for a trial.

The nodes of the task's own pipeline run in their order, with an arm's parameters in the place of the shared ones. A trial
therefore trains on the same data as an ordinary run.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import isgeneratorfunction, signature
from typing import Any, get_type_hints

import pandas as pd
from kedro.pipeline import Pipeline
from pydantic import BaseModel

from grpo_pipeline.pipelines.experiments.trials.arms import TRAINING, ResolvedArm
from grpo_pipeline.pipelines.experiments.trials.records import Trial
from grpo_pipeline.tasks.base import Task


@dataclass(frozen=True)
class TaskPreparation:
    """A task with the functions that prepare it for trials.

    Attributes:
        task: its name, the prefix of its catalogue names.
        prepare: the pipeline from ``<task>.examples`` to ``<task>.task`` and ``<task>.data``.
        memory: dataset -> its value before the first trial.
        carry: dataset -> the memory dataset that hands its value to the next trial, such as computed features.
        resplit: (examples, id -> split) -> examples.
        gather: output of a generator node -> its chunks joined into one value. An ordinary run streams them to a file; a trial
            keeps them in memory.
        without_features: examples -> data for ``Task.fingerprint``, without slow features; None: the data themselves.
        untrained: dataset with the task before any training; "" for ``<task>.task``.
    """

    task: str
    prepare: Pipeline
    resplit: Callable[[Any, Mapping[str, str]], Any]
    without_features: Callable[[Any], Any] | None = None
    untrained: str = ""
    memory: Mapping[str, Any] = field(default_factory=dict)
    carry: Mapping[str, str] = field(default_factory=dict)
    gather: Mapping[str, Callable[[Iterable[Any]], Any]] = field(default_factory=dict)

    @property
    def models(self) -> dict[str, type[BaseModel]]:
        """Section -> model: the typed parameters that the preparing nodes read."""
        prefix = f"params:{self.task}."
        found = {}
        for node in self.prepare.nodes:
            hints = get_type_hints(node.func)
            for argument, name in zip(signature(node.func).parameters, node.inputs, strict=False):
                if name.startswith(prefix):
                    found[name.removeprefix(prefix)] = model_of(hints[argument])
        return {name: model for name, model in found.items() if name != TRAINING}


@dataclass(frozen=True)
class Opened:
    """A task and its data, ready for one trial; ``memory`` is for the next one."""

    task: Task
    data: Any
    memory: Mapping[str, Any]


def model_of(hint: Any) -> type[BaseModel]:
    """Return the model of an annotation, also of ``Model | None``."""
    parts = [
        part
        for part in (hint, *getattr(hint, "__args__", ()))
        if isinstance(part, type) and issubclass(part, BaseModel)
    ]
    if not parts:
        raise TypeError(
            f"a parameter of a preparing node must be annotated with a pydantic model, got {hint}; annotate it"
        )
    return parts[0]


def resplit_table(
    table: pd.DataFrame, split: Mapping[str, str], *, key: str, noun: str
) -> pd.DataFrame:
    """Give a table of examples another split; an id (column ``key``) without an entry gets no split.

    Raises:
        ValueError: if the mapping names an id that is not there.
    """
    ids = table[key].astype(str)
    if unknown := sorted(split.keys() - set(ids)):
        raise ValueError(
            f"a split must name {noun}s of the data, got {unknown[0]!r}; build the folds from these examples"
        )
    return table.assign(split=ids.map(split).fillna(""))


def examples_of(preparation: TaskPreparation, trial: Trial, examples: Any) -> Any:
    """Give the examples the trial's own split, if it has one."""
    return examples if trial.split is None else preparation.resplit(examples, trial.split)


def open_task(preparation: TaskPreparation, arm: ResolvedArm, examples: Any) -> Task:
    """Open the arm's task without any slow computation or training."""
    name = preparation.untrained or f"{preparation.task}.task"
    values = run_pipeline(
        preparation,
        preparation.prepare.to_outputs(name),
        inputs(preparation, arm, examples, seed=0),
    )
    found: Task = values[name]
    return found


def data_of(preparation: TaskPreparation, arm: ResolvedArm, examples: Any) -> Any:
    """Select the data that ``Task.fingerprint`` reads."""
    if preparation.without_features is not None:
        return preparation.without_features(examples)
    name = f"{preparation.task}.data"
    return run_pipeline(
        preparation,
        preparation.prepare.to_outputs(name),
        inputs(preparation, arm, examples, seed=0),
    )[name]


def open_trial(
    preparation: TaskPreparation,
    arm: ResolvedArm,
    trial: Trial,
    examples: Any,
    memory: Mapping[str, Any],
) -> Opened:
    """Open task and data of a trial; features of a frozen encoder are taken from ``memory`` if they fit."""
    given = inputs(preparation, arm, examples_of(preparation, trial, examples), seed=trial.seed)
    values = run_pipeline(
        preparation, preparation.prepare, given | dict(preparation.memory) | dict(memory)
    )
    kept = {name: values[source] for name, source in preparation.carry.items()}
    return Opened(values[f"{preparation.task}.task"], values[f"{preparation.task}.data"], kept)


def inputs(
    preparation: TaskPreparation, arm: ResolvedArm, examples: Any, *, seed: int
) -> dict[str, Any]:
    """Collect the inputs of the preparing nodes: examples, the arm's sections, the seed. An absent section is None."""
    wanted = {name: None for name in preparation.prepare.inputs() if name.startswith("params:")}
    sections = {
        f"params:{preparation.task}.{name}": section for name, section in arm.sections.items()
    }
    return wanted | sections | {"params:seed": seed, f"{preparation.task}.examples": examples}


def run_pipeline(
    preparation: TaskPreparation, pipeline: Pipeline, values: dict[str, Any]
) -> dict[str, Any]:
    """Run the nodes in their order; values travel by reference, and the yields of a generator node are gathered."""
    values = dict(values)
    for node in pipeline.nodes:
        outputs = node.run({name: values[name] for name in node.inputs})
        is_stream = isgeneratorfunction(node.func)
        values |= {
            name: preparation.gather[name](value) if is_stream else value
            for name, value in outputs.items()
        }
    return values
