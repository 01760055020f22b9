"""Prediction of any task: a trained arm samples for the rows of a split, which need no labels; a table of samples comes out."""

import json
from typing import Any

import pandas as pd
import torch
from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.pipelines.params import SamplingParams
from grpo_pipeline.tasks.base import Task
from grpo_pipeline.tasks.exported import TrainedArms, version_of
from grpo_pipeline.tasks.spec import TaskSpec

BATCH_PROMPTS = 64
OF_TRAINING = (
    "training",
    "calibration",
    "inputs",
)  # sections of a model's description that say how it was made


@torch.no_grad()
def sample_split(
    params: SamplingParams, task: Task, data: Any, models: TrainedArms
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the task's table of samples, and a report on what was sampled with which model.

    Raises:
        FileNotFoundError: if the arm has no model.
        ValueError: if the model was trained with other parameters of the task, or the split is empty.
    """
    parameter = f"{task.name}.predict.arm"
    model, policy = models.load(params.arm, parameter=parameter), task.build_policy(0)
    # As a file holds it: in JSON keys are texts, and a tuple is a list.
    here = json.loads(json.dumps(task.describe(policy)))
    there = dict(model.config)
    for name, value in here.items():
        if name not in OF_TRAINING and name in there and there[name] != value:
            raise ValueError(
                f"{task.name}.{name} must be what the model was trained with, got another; set it back or train again"
            )
    policy.load_state_dict(dict(model.tensors))
    policy.eval()
    rows = task.rows(data, params.split)
    if not len(rows):
        raise ValueError(
            f"{task.name}.predict.split must name a split with examples, got {params.split!r}; correct it"
        )
    frames = []
    for number, start in enumerate(range(0, len(rows), BATCH_PROMPTS)):
        batch = task.make_batch(data, rows[start : start + BATCH_PROMPTS])
        generator = step_generator(
            params.seed, number, stream=Stream.PREDICTED_SAMPLES, device=task.device
        )
        drawn = task.sample(
            policy,
            task.encode(policy, batch),
            params.samples,
            temperature=params.temperature,
            proposal="policy",
            generator=generator,
        )
        frames.append(task.tabulate(data, batch, drawn))
    version = version_of(models.find(params.arm, parameter=parameter))
    report = params.model_dump() | {
        "rows": len(rows),
        "scored": len(rows),
        "quarantined": 0,
        "model": version,
    }
    return pd.concat(frames, ignore_index=True), report | {"absent_columns": [], "notes": []}


def create_pipeline(spec: TaskSpec, prepare: Pipeline) -> Pipeline:
    """Wire the task's data and newest models -> ``<task>.predict.samples`` and ``.report``; nothing is trained."""
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
