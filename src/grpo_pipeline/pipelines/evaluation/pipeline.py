"""Wire the evaluation of all arms into a comparison, and the sampling with a trained arm."""

from collections.abc import Sequence

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.evaluation.nodes import (
    INSTEAD,
    SHOWN,
    TRAINING,
    compare_arms,
    fit_baselines,
    read_commit,
    sample_split,
    state_answer,
)
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.spec import TaskSpec


def create_pipeline(task: str, arms: Sequence[str], *, has_baselines: bool = False) -> Pipeline:
    """Compare the arms: ``<task>.<arm>.predictions``, ``.metric_rows``, ``.showcase`` -> ``<task>.comparison`` and ``.answer``.

    The control, the rules and the resamples come from the parameters ``<task>.evaluation``.

    Args:
        task: prefix of the catalogue names.
        arms: names of the arms, in the order of the report.
        has_baselines: True where the task has baselines, such as classifiers; they are compared, too.
    """
    # The parameters come first: Kedro matches the types of parameters to the function's arguments by position.
    inputs = {"params": f"params:{task}.evaluation", "commit": f"{task}.commit"}
    predictions = {arm: f"{task}.{arm}.predictions" for arm in arms}
    training = {f"{arm}{TRAINING}": f"{task}.{arm}.metric_rows" for arm in arms}
    if find_task(task).outputs:
        training |= {f"{arm}{SHOWN}": f"{task}.{arm}.showcase" for arm in arms}
    instead = {INSTEAD: f"{task}.baseline_predictions"} if has_baselines else {}
    return Pipeline(
        [
            Node(
                read_commit,
                inputs=None,
                outputs=f"{task}.commit",
                name="read_commit",
                namespace=f"{task}.evaluation",
            ),
            Node(
                compare_arms,
                inputs=inputs | predictions | training | instead,
                outputs=f"{task}.comparison",
                name="compare_arms",
                namespace=f"{task}.evaluation",
            ),
            Node(
                state_answer,
                inputs={
                    "params": f"params:{task}.evaluation",
                    "comparison": f"{task}.comparison",
                    **{arm: f"{task}.{arm}.metric_rows" for arm in arms},
                },
                outputs=f"{task}.answer",
                name="state_answer",
                namespace=f"{task}.evaluation",
            ),
        ]
    )


def create_baselines(task: str) -> Pipeline:
    """Fit the task's baselines beside the arms: ``<task>.data`` -> ``<task>.baseline_predictions``."""
    return Pipeline(
        [
            Node(
                fit_baselines,
                inputs=[f"params:{task}.evaluation", f"{task}.task", f"{task}.data"],
                outputs=f"{task}.baseline_predictions",
                name="fit_baselines",
                namespace=f"{task}.evaluation",
                tags=[task],
            )
        ]
    )


def create_sampling(spec: TaskSpec, prepare: Pipeline) -> Pipeline:
    """Wire sampling with the newest models: ``<task>.data`` -> ``<task>.predict.samples`` and ``.report``, without training."""
    task = f"{spec.name}.untrained_task" if spec.stages else f"{spec.name}.task"
    inputs = [
        f"params:{spec.name}.predict",
        task,
        f"{spec.name}.data",
        f"{spec.name}.predict.models",
    ]
    outputs = [f"{spec.name}.predict.samples", f"{spec.name}.predict.report"]
    node = Node(
        sample_split,
        inputs,
        outputs,
        name="sample_split",
        namespace=f"{spec.name}.predict",
        tags=[spec.name, "predict"],
    )
    return prepare.to_outputs(task, f"{spec.name}.data") + Pipeline([node])
