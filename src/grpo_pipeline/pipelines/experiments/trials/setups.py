"""Every task as the engine sees it, from its spec and its preparation; the stages of a seed are trained once for all its arms."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pkgutil import resolve_name
from typing import Any

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core.agreement import digest_of
from grpo_pipeline.core.params import AlgorithmParams
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.pipelines.experiments.trials.arms import StageParams
from grpo_pipeline.pipelines.experiments.trials.setup import TaskSetup, resplit_table, train_weights
from grpo_pipeline.pipelines.training.stages import create_preparation
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.base import Task
from grpo_pipeline.tasks.spec import TaskSpec


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
    wiring, stages = spec.wiring(), (*spec.optional_stages, *spec.stages)
    setup = TaskSetup(
        task=task,
        prepare=create_preparation(spec, stages),
        resplit=partial(resplit, spec),
        reward_section=spec.reward_section,
    )
    setup = with_stages(setup, stages) if stages else setup
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


def with_stages(setup: TaskSetup, stages: tuple[str, ...]) -> TaskSetup:
    """Return the setup whose task begins with the weights that the last stage ends with, trained with the seed of each trial.

    A stage does nothing for an arm without its section.
    """
    task, nodes = setup.task, []
    untrained = current = f"{task}.untrained_task"
    data = f"{task}.data"
    for stage in stages:
        where = f"{task}.{stage}"
        section, checked, start = f"params:{where}", f"{where}.task", f"{where}.start"
        begun = f"{task}.task" if stage == stages[-1] else f"{where}.begun"
        inputs = [f"params:{task}.algorithm", section, current, data]
        nodes.append(Node(opening(stage), inputs, checked, name=f"check_{stage}", namespace=where))
        inputs = [section, "params:seed", checked, data, f"{where}.known"]
        nodes.append(Node(train_stage, inputs, start, name=f"train_{stage}", namespace=where))
        inputs = [section, checked, start]
        nodes.append(Node(begin_with, inputs, begun, name=f"begin_with_{stage}", namespace=where))
        current = begun
    return replace(
        setup,
        prepare=setup.prepare + Pipeline(nodes),
        untrained=untrained,
        memory={f"{task}.{stage}.known": InitialWeights() for stage in stages},
        carry={f"{task}.{stage}.known": f"{task}.{stage}.start" for stage in stages},
    )


def opening(name: str) -> Callable[..., Task]:
    """Return the node that checks an arm and opens the stage of this name."""

    def check_arm(
        algorithm: AlgorithmParams, stage: StageParams | None, task: Task, data: Any
    ) -> Task:
        """Return the task that the stage trains, once the arm asks for what it has: before the stage is trained for it."""
        task.check_data(data)
        task.check_algorithm(algorithm)
        if stage is None:
            return task
        opened: Task = task.open_stage(name)
        opened.check_algorithm(stage.algorithm)
        return opened

    return check_arm


def train_stage(
    stage: StageParams | None, seed: int, task: Task, data: Any, known: InitialWeights
) -> InitialWeights:
    """Train a stage with the trial's seed, unless the trial before it began with the same weights.

    Without a stage what is known is kept for the next arm that has one.
    """
    if stage is None:
        return known
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


def begin_with(stage: StageParams | None, task: Task, start: InitialWeights) -> Task:
    """Return the task whose policies begin with these weights; without a stage the task itself."""
    return task if stage is None else task.begin_with(start.model)
