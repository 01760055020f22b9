"""Every task as the engine sees it, from its spec and its preparation; the stages of a seed are trained once for all its arms."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pkgutil import resolve_name
from typing import Any, ClassVar

from kedro.pipeline import Node, Pipeline
from pydantic import BaseModel, ConfigDict

from grpo_pipeline.core.agreement import digest_of
from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.pipelines.experiments.trials.setup import TaskSetup, resplit_table, train_weights
from grpo_pipeline.pipelines.training.stages import data_of_stage
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.base import Task
from grpo_pipeline.tasks.spec import TaskSpec


class StageParams(BaseModel):
    """A stage before the arms (``<task>.<stage>``): its algorithm and its loop."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: AlgorithmParams
    training: TrainingParams


class OptionalStageParams(StageParams):
    """A stage that an arm may leave out by null; its other sections are read by the task."""

    model_config = ConfigDict(frozen=True, extra="allow")
    may_be_null: ClassVar[bool] = True


@dataclass(frozen=True)
class InitialWeights:
    """The weights that a stage ended with.

    Attributes:
        key: of everything that decides them; "" before there are any.
        model: the weights.
    """

    key: str = ""
    model: ModelWeights = field(default=ModelWeights({}, {}), repr=False)


def find_setup(task: str) -> TaskSetup:
    """Return a task as the engine sees it; its own ``adapt_setup`` may change what is general.

    Raises:
        ValueError: if there is no such task.
    """
    spec = find_task(task)
    wiring = spec.wiring()
    setup = TaskSetup(
        task=task,
        prepare=wiring.create_preparation(
            *([tuple(spec.optional_stages)] if spec.optional_stages else [])
        ),
        resplit=partial(resplit, spec),
        reward_section=spec.reward_section,
    )
    stages = (*spec.optional_stages, *spec.stages)
    setup = with_stages(setup, spec, stages) if stages else setup
    adapted: TaskSetup = wiring.adapt_setup(setup) if hasattr(wiring, "adapt_setup") else setup
    return adapted


def resplit(spec: TaskSpec, examples: Any, split: Mapping[str, str]) -> Any:
    """Return the examples with another split; one that the mapping does not name is in none."""
    table = resplit_table(examples.table, split, key=spec.key, noun=spec.noun)
    return (
        resolve_name(spec.with_table)(examples, table)
        if spec.with_table
        else replace(examples, table=table)
    )


def with_stages(setup: TaskSetup, spec: TaskSpec, stages: tuple[str, ...]) -> TaskSetup:
    """Return the setup whose task begins with the weights that the last stage ends with, trained with the seed of each trial.

    An optional stage is there and does nothing for an arm without its section.
    """
    task, nodes = setup.task, []
    untrained = current = f"{task}.untrained_task"
    for stage in stages:
        where = f"{task}.{stage}"
        section, checked, start = f"params:{where}", f"{where}.task", f"{where}.start"
        begun = f"{task}.task" if stage == stages[-1] else f"{where}.begun"
        data = data_of_stage(spec, stage)
        check: Callable[..., Any] = check_arm
        train: Callable[..., Any] = train_stage
        begin: Callable[..., Any] = begin_with
        if stage in spec.optional_stages:
            check = optional_check(stage)
            train, begin = train_optional, begin_with_optional
        inputs = [f"params:{task}.algorithm", section, current, data]
        nodes.append(Node(check, inputs, checked, name=f"check_{stage}", namespace=where))
        inputs = [section, "params:seed", checked, data, f"{where}.known"]
        nodes.append(Node(train, inputs, start, name=f"train_{stage}", namespace=where))
        inputs = [*([section] if begin is not begin_with else []), checked, start]
        nodes.append(Node(begin, inputs, begun, name=f"begin_with_{stage}", namespace=where))
        current = begun
    return replace(
        setup,
        prepare=setup.prepare + Pipeline(nodes),
        untrained=untrained,
        memory={f"{task}.{stage}.known": InitialWeights() for stage in stages},
        carry={f"{task}.{stage}.known": f"{task}.{stage}.start" for stage in stages},
    )


def check_arm(algorithm: AlgorithmParams, stage: StageParams, task: Task, data: Any) -> Task:
    """Hand the task on once the arm asks for what it has: before a stage is trained for it, not after it."""
    task.check_data(data)
    for wanted in (stage.algorithm, algorithm):
        task.check_algorithm(wanted)
    return task


def train_stage(
    stage: StageParams, seed: int, task: Task, data: Any, known: InitialWeights
) -> InitialWeights:
    """Train a stage with the trial's seed, unless the trial before it began with the same weights."""
    # The digest of what decides a stage's weights; where no samples are drawn, their rewards do not.
    facts = task.fingerprint(data, draws=stage.algorithm.proposal != "none") | {
        "device": str(task.device)
    }
    key = digest_of({"stage": stage.model_dump(mode="json"), "seed": seed, "task": facts})
    if known.key == key:
        return known
    return InitialWeights(
        key, train_weights(stage.algorithm, stage.training, task, data, seed=seed)[0]
    )


def begin_with(task: Task, start: InitialWeights) -> Task:
    """Return the task whose policies begin with these weights."""
    begun: Task = task.begin_with(start.model)
    return begun


def optional_check(name: str) -> Callable[..., Task]:
    """Return the node that checks as ``check_arm`` does and opens the optional stage of this name."""

    def check_optional(
        algorithm: AlgorithmParams, stage: OptionalStageParams | None, task: Task, data: Any
    ) -> Task:
        """Return the task that the stage trains, and the task itself without a stage."""
        task.check_data(data)
        task.check_algorithm(algorithm)
        if stage is None:
            return task
        opened: Task = task.open_stage(name, stage.model_extra or {})
        opened.check_algorithm(stage.algorithm)
        return opened

    return check_optional


def train_optional(
    stage: OptionalStageParams | None, seed: int, task: Task, data: Any, known: InitialWeights
) -> InitialWeights:
    """Train as ``train_stage`` does; without a stage keep what is known for the next arm that has one."""
    return known if stage is None else train_stage(stage, seed, task, data, known)


def begin_with_optional(
    stage: OptionalStageParams | None, task: Task, start: InitialWeights
) -> Task:
    """Begin as ``begin_with`` does; without a stage return the task."""
    return task if stage is None else begin_with(task, start)
