"""Define the nodes of the evaluation, and of sampling with a trained arm on a split without labels."""

import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pandas as pd
import torch

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.pipelines.evaluation.comparison import compare
from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.params import EvaluationParams, SamplingParams
from grpo_pipeline.runs.lookahead import usable_cores
from grpo_pipeline.runs.run_identity import run_identity
from grpo_pipeline.statistics.answer_reading import read_answer, read_grid_answer
from grpo_pipeline.statistics.sameness import measure_sameness, sameness_sentences
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.base import Task
from grpo_pipeline.tasks.trained_arms import TrainedArms, version_of

TRAINING, SHOWN, INSTEAD = "__training", "__shown", "__instead"

BATCH_PROMPTS = 64

OF_TRAINING = (
    "training",
    "calibration",
    "inputs",
    "validation",
)  # sections of a model's description that say how it was made


def fit_baselines(params: EvaluationParams, task: Task, data: Any) -> pd.DataFrame:
    """Fit the task's baselines on the training split, and predict the held-out split with them.

    Without ``evaluation.baselines``, the table is empty and nothing is fitted.

    Raises:
        ValueError: if the task has no baseline of a name.
    """
    if not params.baselines:
        return pd.DataFrame({"rule": []}, dtype=str)
    fit = resolve_name(find_task(params.task).baselines)
    rows: pd.DataFrame = fit(
        task, data, params.baselines, task.rows(data, params.split), seed=params.seed
    )
    return rows


def compare_arms(params: EvaluationParams, commit: str, **tables: Any) -> dict[str, Any]:
    """Compare the arms on the held-out split.

    Args:
        params: names of control, rules and cluster; resamples and seed.
        commit: git commit of the code, or "unknown".
        tables: for each arm ``<arm>``, its prediction rows; ``<arm>__training``, its metric rows; ``<arm>__shown``, its showcase.
            Where the task has baselines, also ``__instead``, the prediction rows of ``fit_baselines``.

    Returns:
        The comparison document of docs/metrics.md: values with intervals, paired differences, summary, and outputs that are the
        same for every input.

    Raises:
        ValueError: if the predictions do not belong together or the control is missing.
    """
    instead = tables.pop(INSTEAD, None)
    training, shown = (
        {name.removesuffix(end): rows for name, rows in tables.items() if name.endswith(end)}
        for end in (TRAINING, SHOWN)
    )
    predictions = {
        name: rows for name, rows in tables.items() if not name.endswith((TRAINING, SHOWN))
    }
    suite = build_suite(params.task, params.metric_options)
    document = compare(
        predictions, params, suite=suite, commit=commit, training=training, instead=instead
    )
    outputs = find_task(params.task).outputs
    sameness = {arm: measure_sameness(arrays, outputs) for arm, arrays in shown.items()}
    if sameness:
        document["sameness"] = sameness
        document["summary"] = [*document["summary"], *sameness_sentences(sameness)]
    return document | {"run": run_identity()}


def state_answer(
    params: EvaluationParams, comparison: Mapping[str, Any], **metric_rows: pd.DataFrame
) -> dict[str, Any]:
    """State the answer about the arm that is shown, once for terminal, page and MLflow (docs/answer.md).

    Args:
        params: parameters of the evaluation.
        comparison: the document.
        metric_rows: arm -> metric rows of its training, whose seconds are summed.
    """
    suite = build_suite(params.task, params.metric_options)
    seconds = {
        arm: float(rows["step_seconds"].sum())
        for arm, rows in metric_rows.items()
        if "step_seconds" in rows
    }
    answer = read_answer(comparison, suite, seconds=seconds)
    return answer.model_copy(update={"machine": describe_machine()}).model_dump(mode="json")


def state_grid_answer(params: EvaluationParams, result: Mapping[str, Any]) -> dict[str, Any]:
    """State the answer of ``compare`` or ``cross_validate``, in the same form."""
    suite = build_suite(params.task, params.metric_options)
    answer = read_grid_answer(result, suite)
    return answer.model_copy(update={"machine": describe_machine()}).model_dump(mode="json")


def describe_machine() -> str:
    """Return processor, cores and threads of this process."""
    cores, threads = usable_cores(most=10**6), torch.get_num_threads()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{platform.system()} {platform.machine()}, {cores} cores, threads {threads}{gpu}"


def read_commit() -> str:
    """Return the git commit of the code that runs, or "unknown" outside a repository or without git."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return result.stdout.strip() if result.returncode == 0 else "unknown"


@torch.no_grad()
def sample_split(
    params: SamplingParams, task: Task, data: Any, models: TrainedArms
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Sample a split with a trained arm; returns the task's table of samples, and a report on them.

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
