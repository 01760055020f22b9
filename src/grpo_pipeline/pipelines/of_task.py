"""Assemble all pipelines of a task from the shared pipelines and the task's own data pipeline."""

from collections.abc import Mapping
from typing import Any

from kedro.pipeline import Pipeline

from grpo_pipeline.pipelines.arms import Arms, arms_of
from grpo_pipeline.pipelines.boxes import (
    connect_evaluation,
    lookup_node,
    read_rest,
    unlike_names,
    with_boxes,
)
from grpo_pipeline.pipelines.evaluation.pipeline import create_baselines, create_sampling
from grpo_pipeline.pipelines.evaluation.pipeline import create_pipeline as create_evaluation
from grpo_pipeline.pipelines.experiments.compare.pipeline import create_pipeline as create_compare
from grpo_pipeline.pipelines.experiments.cross_validation.pipeline import (
    create_pipeline as create_cross_validation,
)
from grpo_pipeline.pipelines.gradient_flow import create_pipeline as create_flow
from grpo_pipeline.pipelines.reporting.pipeline import create_pipeline as create_reporting
from grpo_pipeline.pipelines.reward_audit.pipeline import create_gate
from grpo_pipeline.pipelines.reward_audit.pipeline import create_pipeline as create_reward_audit
from grpo_pipeline.pipelines.step.arm_parts import parts_of
from grpo_pipeline.pipelines.training.pipeline import create_pipeline as create_arm
from grpo_pipeline.pipelines.training.stages import create_preparation, create_stages
from grpo_pipeline.pipelines.training.turns import with_turns
from grpo_pipeline.tasks.spec import TaskSpec

# Results of an arm's first training step: its worked example, and its metrics.
PROBE = ("probe_table", "probe_step_metrics")


@unlike_names()
def task_pipelines(
    spec: TaskSpec, own: Arms | None = None, algorithms: Mapping[str, Any] | None = None
) -> dict[str, Pipeline]:
    """Build the pipelines of a task by name: the whole pipeline under the task's name, each other one with that prefix.

    The registry lists these names (``pipeline_registry.PIPELINES``) before anything is built.

    Args:
        spec: the task.
        own: arm -> its own sections of parameters; None for the arms of the spec.
        algorithms: arm or stage -> its section ``algorithm``, which decides the parts of its step. An unknown section gives all
            parts.

    Raises:
        ValueError: if a node of the task lies outside of its namespace, or its preparation makes no task.
    """
    own = arms_of(spec, {}) if own is None else own
    task, arms, wiring = spec.name, tuple(own), spec.wiring()
    data = wiring.create_pipeline()
    built = create_preparation(spec, spec.stages)
    for node in (data + built).nodes:
        if not (node.namespace or "").startswith(f"{task}."):
            raise ValueError(
                f"node {node.name} must be in a namespace of task {task}, got {node.namespace}; "
                f'give it namespace="{task}.data", so that its name is no other task\'s'
            )
    parts = {name: parts_of((algorithms or {}).get(name)) for name in (*spec.stages, *arms)}
    prepare = built + create_stages(spec, own, parts)
    audit = create_reward_audit(task)
    both = {arm: arm not in spec.keeping_one for arm in arms}
    arm_pipelines = (
        create_arm(task, arm, own=own[arm], keeps_both=both[arm], parts=parts[arm]) for arm in arms
    )
    train = sum(arm_pipelines, start=prepare) + audit
    trained = (*spec.stages, *arms)
    places = [f"{task}.{part}" for part in trained]
    found_before = [
        lookup_node(f"{place}.resume_from", name="find_checkpoint", namespace=f"{place}.start")
        for place in places
    ]
    train += create_gate(task) + Pipeline(found_before)
    if spec.baselines:
        train += create_baselines(task)
    evaluate = create_evaluation(task, arms, has_baselines=bool(spec.baselines)) + create_reporting(
        task, arms
    )
    evaluate = connect_evaluation(task, data + train, evaluate, trained=trained)
    whole = data + train + evaluate
    found = {
        "data": data,
        "train": train,
        "evaluate": evaluate,
        "step": (data + train).to_outputs(
            *(f"{task}.{arm}.{out}" for arm in arms for out in PROBE)
        ),
        "gradient_flow": sum(
            (create_flow(task, arm, own=own[arm], parts=parts[arm]) for arm in arms),
            start=data + prepare,
        ),
        "reward_audit": data + prepare + audit,
        "compare": data + create_compare(task),
        "cross_validate": data + create_cross_validation(task),
    }
    predict = getattr(wiring, "create_prediction", None)
    found["predict"] = predict() if predict else create_sampling(spec, data + built)
    named = {task: whole + read_rest(task, whole, trained=trained)} | {
        f"{task}_{name}": pipeline for name, pipeline in found.items()
    }
    return {
        name: with_boxes(with_turns(pipeline, task, arms), task, trained=trained)
        for name, pipeline in named.items()
    }
