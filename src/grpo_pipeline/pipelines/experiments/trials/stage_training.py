"""Train the stages of a seed once for all its arms."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core.agreement import digest_of
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.pipelines.experiments.trials.preparation import TaskPreparation
from grpo_pipeline.pipelines.experiments.trials.trial_params import StageParams
from grpo_pipeline.pipelines.experiments.trials.trial_training import train_weights
from grpo_pipeline.tasks.base import Task


@dataclass(frozen=True)
class InitialWeights:
    """The weights that a stage ended with.

    Attributes:
        key: of everything that decides them; "" before there are any.
        model: the weights.
    """

    key: str = ""
    model: ModelWeights = field(default=ModelWeights({}, {}), repr=False)


def with_stages(preparation: TaskPreparation, stages: tuple[str, ...]) -> TaskPreparation:
    """Extend a preparation: its task begins with the weights of the last stage, trained with the seed of each trial.

    A stage does nothing for an arm without its section.
    """
    task, nodes = preparation.task, []
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
        preparation,
        prepare=preparation.prepare + Pipeline(nodes),
        untrained=untrained,
        memory={f"{task}.{stage}.known": InitialWeights() for stage in stages},
        carry={f"{task}.{stage}.known": f"{task}.{stage}.start" for stage in stages},
    )


def opening(name: str) -> Callable[..., Task]:
    """Find the node that checks an arm and opens the stage of this name."""

    def check_arm(
        algorithm: AlgorithmParams, stage: StageParams | None, task: Task, data: Any
    ) -> Task:
        """Check that the task can train the arm, before the stage is trained for it; returns the task that the stage trains."""
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
    # The digest of the inputs that affect a stage's weights; without samples, rewards do not affect them.
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
    """Give the task these initial weights; without a stage, return the task unchanged."""
    return task if stage is None else task.begin_with(start.model)
