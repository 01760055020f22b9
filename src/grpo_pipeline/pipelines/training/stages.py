"""Stages that come before the arms, for every task: checked, trained one after the other, and what the arms begin with."""

from collections.abc import Mapping
from functools import wraps
from typing import Any

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.pipelines.arms import Arms
from grpo_pipeline.pipelines.experiments.trials.arms import validate
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.training.pipeline import create_stage
from grpo_pipeline.tasks.base import Task
from grpo_pipeline.tasks.spec import TaskSpec

BETWEEN = "__"  # arm and section in the name of an argument


def check_arms(stage: str, task: Task, data: Any, **sections: Any) -> Task:
    """Return the task that the first stage trains, once every arm asks for what it has and it can work on these data.

    Args:
        stage: the first one.
        task: the untrained task.
        data: its data.
        sections: ``<arm>__<section>`` -> the parameters of an arm, or of a stage, of its own, ``algorithm`` among them.

    Raises:
        ValueError: naming what an arm cannot ask for.
    """
    task.check_data(data)
    opened: Task = task.open_stage(stage)
    own: dict[str, dict[str, Any]] = {}
    for name, values in sections.items():
        arm, _, section = name.partition(BETWEEN)
        own.setdefault(arm, {})[section] = values
    for arm, found in own.items():
        algorithm = validate(
            AlgorithmParams, found.pop("algorithm"), path=f"{task.name}.{arm}.algorithm"
        )
        assert isinstance(algorithm, AlgorithmParams)
        trained = opened if arm == stage else task
        trained.with_sections(found, path=f"{task.name}.{arm}").check_algorithm(algorithm)
    return opened


def begin_with(task: Task, model: ModelWeights) -> Task:
    """Return the task whose policies begin with a stage's weights."""
    begun: Task = task.begin_with(model)
    return begun


def take_sections(task: Task, **sections: Any) -> Task:
    """Return the task as an arm with sections of its own has it."""
    return task.with_sections(sections, path=task.name)


def create_preparation(spec: TaskSpec, stages: tuple[str, ...]) -> Pipeline:
    """Wire the task's examples -> its data and its task, which is ``<task>.untrained_task`` before stages.

    Raises:
        ValueError: if the task's own pipeline leads to another one.
    """
    built: Pipeline = spec.wiring().create_preparation()
    made, wanted = built.all_outputs(), f"{spec.name}.task"
    if wanted not in made:
        raise ValueError(
            f"create_preparation of the task {spec.name} must lead to {wanted}, got {', '.join(sorted(made)) or 'nothing'}; "
            "rename its output"
        )
    return Pipeline(built, outputs={wanted: f"{spec.name}.untrained_task"}) if stages else built


def create_stages(spec: TaskSpec, arms: Arms, parts: Mapping[str, Parts]) -> Pipeline:
    """Wire ``<task>.untrained_task`` and ``<task>.data`` -> ``<task>.task``, and ``<task>.<arm>.task`` of an arm with its own."""
    task, nodes = spec.name, []
    own = {arm: [name for name in arms[arm] if name != "training"] for arm in arms}
    for arm in arms:
        if own[arm]:
            taken = {"task": f"{task}.task"} | {
                name: f"params:{task}.{arm}.{name}" for name in own[arm]
            }
            nodes.append(
                Node(
                    take_sections,
                    taken,
                    f"{task}.{arm}.task",
                    name="take_sections",
                    namespace=f"{task}.{arm}",
                )
            )
    if not spec.stages:
        return Pipeline(nodes, tags=task)
    sections = {
        f"{arm}{BETWEEN}{name}": f"params:{task}.{arm}.{name}"
        for arm in (*spec.stages, *arms)
        for name in ("algorithm", *own.get(arm, ()))
    }
    stages = sum(
        (create_stage(task, stage, parts=parts[stage]) for stage in spec.stages), start=Pipeline([])
    )
    first = spec.stages[0]

    @wraps(check_arms)  # a function, so that Kedro-Viz shows its code
    def check(task: Task, data: Any, **sections: Any) -> Task:
        return check_arms(first, task, data, **sections)

    nodes.append(
        Node(
            check,
            {"task": f"{task}.untrained_task", "data": f"{task}.data", **sections},
            f"{task}.{first}.task",
            name="check_arms",
            namespace=f"{task}.{first}",
        )
    )
    after = {
        stage: f"{task}.{following}.task"
        for stage, following in zip(spec.stages, spec.stages[1:], strict=False)
    }
    for stage in spec.stages:
        begun = after.get(stage, f"{task}.task")
        nodes.append(
            Node(
                begin_with,
                [f"{task}.{stage}.task", f"{task}.{stage}.model"],
                begun,
                name=f"begin_with_{stage}",
                namespace=f"{task}.{stage}",
            )
        )
    return Pipeline(nodes, tags=task) + stages
