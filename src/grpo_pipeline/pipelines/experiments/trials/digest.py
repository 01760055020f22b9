"""Compute a digest of all inputs of a trial (parameters, data, seed, code); a finished trial with the same digest is kept."""

import hashlib
import json
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import grpo_pipeline
from grpo_pipeline.pipelines.experiments.trials.arms import ResolvedArm
from grpo_pipeline.pipelines.experiments.trials.preparation import (
    TaskPreparation,
    data_of,
    examples_of,
    open_task,
)
from grpo_pipeline.pipelines.experiments.trials.records import (
    Trial,
)
from grpo_pipeline.pipelines.training.resuming import run_digest
from grpo_pipeline.runs.code_version import digest_of_sources
from grpo_pipeline.tasks import TASKS, find_task

# Code that only reads finished trials (evaluation, reporting, tracking) is left out: a new figure retrains nothing.
DECIDING = (
    *("core", "rewards", "statistics", "pipelines/step", "pipelines/training"),
    *(
        "pipelines/experiments/trials/preparation.py",
        "pipelines/experiments/trials/stage_training.py",
    ),
    *(
        "pipelines/experiments/trials/task_lookup.py",
        "pipelines/experiments/trials/trial_training.py",
    ),
)


def trial_digest(
    preparation: TaskPreparation, arm: ResolvedArm, trial: Trial, examples: Any, *, split: str
) -> str:
    """Compute the digest of a trial; two trials with the same digest have the same result (on one machine)."""
    there = examples_of(preparation, trial, examples)
    task = open_task(preparation, arm, there)
    run = run_digest(
        arm.algorithm, arm.training, task, data_of(preparation, arm, there), seed=trial.seed
    )
    parameters = json.dumps({"scored": split, **arm.parameters}, sort_keys=True)
    return hashlib.sha256(
        "\n".join([run, parameters, arm.description.rule, source_digest(preparation.task)]).encode()
    ).hexdigest()


@cache
def source_digest(task: str) -> str:
    """Compute the digest of the source files behind a task's trials, and of the versions of this package and torch.

    These are the code that all tasks share, and the task's own: another task's may change.
    """
    package, wiring = Path(grpo_pipeline.__file__).parent, find_task(task).wiring()
    shared = sorted(f"tasks/{path.name}" for path in (package / "tasks").glob("*.py"))
    folders = {Path(str(module.__file__)).parent for module in (import_module(TASKS[task]), wiring)}
    own = sorted(folder for folder in folders if folders.isdisjoint(folder.parents))
    versions = f"{grpo_pipeline.__version__} {torch.__version__}"
    parts = [digest_of_sources(package, (*DECIDING, *shared), salt=versions)]
    return "\n".join([*parts, *(digest_of_sources(path.parent, [path.name]) for path in own)])
