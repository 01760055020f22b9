"""Cross-validation of the tiny attention task, node by node, without Kedro around it."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from tiny import SERIAL
from tiny_attention import make_clinical_examples, section
from tiny_grid import SHORT, Memory, tiny_parameters

from grpo_pipeline.pipelines.experiments.cross_validation import nodes
from grpo_pipeline.pipelines.experiments.cross_validation.out_of_fold import OutOfFold
from grpo_pipeline.pipelines.params import CrossValidationParams, EvaluationParams
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.folds import SPLITS, FoldPlan, Names, plan_folds
from grpo_pipeline.tasks.params import FoldParams

TRAINING = {"epochs": 1, "validation_samples": 2}
EVALUATION = EvaluationParams(
    task="attention",
    split="test",
    control="supervised",
    baseline_arm="grpo",
    headline_rule="policy",
    chance_rule="uniform",
    cluster="patient_id",
    seed=0,
    resamples=20,
    metric_options={},
)


RENAMED = {"core_id": "example", "patient_id": "cluster"}


def plan_cores(cores: pd.DataFrame, splits: Any, params: FoldParams) -> FoldPlan:
    """Divide the cores of a table of the attention task."""
    names = Names("attention", noun="core", clusters="patient")
    return plan_folds(cores.rename(columns=RENAMED), splits.get("test", ()), params, names)


def make_params(scheme: str, **changes: Any) -> CrossValidationParams:
    arms = {"supervised": {"base": "supervised", "set": {"training": TRAINING}}, "grpo": {"base": "grpo", "set": SHORT}}
    values = {
        **{"scheme": scheme, "folds": 2, "inner_folds": 2, "val_share": 0.4, "seed": 0, "seeds": [0], "control": "supervised"},
        **{"arms": arms, "candidates": None, "selection_metric": "auroc", "primary_metrics": ["auroc", "reward"]},
        "keep": "predictions",
    }
    return CrossValidationParams.model_validate(values | changes)


def make_fold_examples() -> Examples:
    """30 cores of 16 patients, with clinical columns: p00 to p07 in center a, the others and one core of p00 in b."""
    once = make_clinical_examples()
    table = pd.concat([once.table, once.table.assign(age=once.table["age"] + 5)], ignore_index=True)
    number = np.arange(len(table)) // 2
    table = table.assign(
        core_id=[f"c{i:02d}" for i in range(len(table))],
        patient_id=[f"p{n:02d}" for n in number],
        center=np.where((number > 7) | (np.arange(len(table)) == 1), "b", "a"),
        label=np.arange(len(table)) % 2,
        split=[name for name, n in (("train", 16), ("val", 4), ("test", 10)) for _ in range(n)],
    )
    twice = {name: np.concatenate([getattr(once, name)] * 2) for name in ("images", "region", "bag", "lesion")}
    return replace(once, table=table, digest="tiny-folds", **twice)


def task_parameters() -> dict[str, Any]:
    return {"attention": tiny_parameters() | {"model": section("model", clinical={"dropout": 0.0})}}


@dataclass
class Validated:
    """Everything that one cross-validation has made."""

    params: CrossValidationParams
    examples: Examples
    folds: dict[str, Any]
    choices: list[Any]
    rows: OutOfFold
    result: dict[str, Any]
    inner: Memory = field(default_factory=Memory)
    trials: Memory = field(default_factory=Memory)


def train_all(found: Any, store: Memory) -> None:
    for record in found:
        if record is not False:
            store.keep(record)


def cross_validate(params: CrossValidationParams) -> Validated:
    """Run the nodes in their order."""
    examples = make_fold_examples()
    splits = {name: examples.table.loc[examples.table["split"] == name, "core_id"].tolist() for name in SPLITS}
    settings = nodes.arrange_arms(params, EVALUATION, task_parameters())
    folds = plan_cores(examples.table, splits, params).document()
    inner, trials = Memory(), Memory()
    train_all(nodes.train_inner_trials(params, EVALUATION, SERIAL, settings, folds, examples, inner), inner)
    choices = nodes.choose_settings(params, EVALUATION, settings, folds, inner)
    train_all(nodes.train_folds(params, EVALUATION, SERIAL, settings, folds, choices, examples, trials), trials)
    rows = nodes.pool_predictions(params, EVALUATION, settings, folds, choices, trials)
    result = nodes.score_predictions(params, EVALUATION, folds, choices, rows, "unknown")
    return Validated(params, examples, folds, choices, rows, result, inner, trials)
