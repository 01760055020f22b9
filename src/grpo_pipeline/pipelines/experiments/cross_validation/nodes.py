"""Nodes of cross-validation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pandas as pd
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.experiments.compare.nodes import score_rows
from grpo_pipeline.pipelines.experiments.cross_validation import choice, forests, tables
from grpo_pipeline.pipelines.experiments.cross_validation.candidates import (
    Settings,
    check_metrics,
    check_reward,
    resolve_settings,
)
from grpo_pipeline.pipelines.experiments.cross_validation.choice import Choice
from grpo_pipeline.pipelines.experiments.cross_validation.document import build_document
from grpo_pipeline.pipelines.experiments.cross_validation.fold_plan import inner_plan, outer_plan
from grpo_pipeline.pipelines.experiments.cross_validation.out_of_fold import OutOfFold, collect
from grpo_pipeline.pipelines.experiments.trials.engine import Bench, run_trials
from grpo_pipeline.pipelines.experiments.trials.records import StoredTrials, TrialRecord
from grpo_pipeline.pipelines.experiments.trials.task_lookup import find_preparation
from grpo_pipeline.pipelines.params import CrossValidationParams, EvaluationParams
from grpo_pipeline.pipelines.reporting.page import Page, configuration_text, plain, render
from grpo_pipeline.runs.executor import ExecutorParams
from grpo_pipeline.runs.run_identity import run_identity
from grpo_pipeline.statistics.metric import Metric, MetricSuite
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks import folds as folding
from grpo_pipeline.tasks.folds import Names, read_plan
from grpo_pipeline.tasks.spec import TaskSpec

Document = dict[str, Any]


def arrange_arms(
    params: CrossValidationParams, evaluation: EvaluationParams, parameters: Mapping[str, Any]
) -> Settings:
    """Resolve and check the parameters of every arm and candidate; needs no data, so that a misspelt name fails first.

    Raises:
        ValueError: naming the arm and the path of what is wrong.
    """
    task = evaluation.task
    check_metrics(params, suite_of(evaluation), task=task)
    settings = resolve_settings(
        params, plain(parameters)[task], task=task, models=find_preparation(task).models
    )
    check_reward(params, settings, task=task)
    return settings


def plan_folds(
    params: CrossValidationParams, evaluation: EvaluationParams, examples: Any
) -> Document:
    """Divide the examples; see ``tasks.folds.plan_folds``. Returns the plan as JSON.

    Where a prediction row is a sample of its own (a molecule) and no example, all trials leave out the held-out split. It could
    not be known which samples belong to it.
    """
    spec, unit = find_task(evaluation.task), suite_of(evaluation).unit
    table, names = (
        fold_table(examples.table, spec, cluster=evaluation.cluster),
        Names(spec.name, spec.noun, spec.words.clusters),
    )
    plan = folding.plan_folds(
        table, list(table.loc[table["split"] == "test", "example"]), params, names
    )
    return (plan if unit.column == spec.key else replace(plan, held_out=())).document()


def fold_table(table: pd.DataFrame, spec: TaskSpec, *, cluster: str) -> pd.DataFrame:
    """Build the columns that divide the examples into folds (``tasks.folds.COLUMNS``), with their split."""
    found = table[table["split"] != ""]
    examples, label, center = found[spec.key].astype(str), found.get("label"), found.get("center")
    trials = {
        "example": examples,
        "cluster": found[cluster].astype(str) if cluster in found else examples,
        "label": 0 if label is None else label,
        "center": "" if center is None else center,
        "split": found["split"],
    }
    # Several rows of one example, such as the frames of a case, are divided as one.
    return pd.DataFrame(trials).drop_duplicates("example").reset_index(drop=True)


def train_inner_trials(
    params: CrossValidationParams,
    evaluation: EvaluationParams,
    executor: ExecutorParams,
    settings: Settings,
    folds: Document,
    examples: Any,
    before: StoredTrials,
) -> Iterator[TrialRecord | Literal[False]]:
    """Train every candidate on the inner folds; without ``nested`` no candidate is trained.

    Raises:
        CompareError: if all trials failed.
    """
    plan = inner_plan(settings, read_plan(folds), params.seeds)
    yield from run_trials(plan, bench(params, evaluation, executor, folds, examples), before)


def choose_settings(
    params: CrossValidationParams,
    evaluation: EvaluationParams,
    settings: Settings,
    folds: Document,
    inner: StoredTrials,
) -> list[Choice]:
    """Choose a candidate per arm and outer fold by its inner folds; without ``nested`` there is no choice.

    Raises:
        CompareError: if no candidate of an arm can be chosen.
    """
    if params.scheme != "nested":
        return []
    suite = suite_of(evaluation).for_names([params.selection_metric])
    metric = suite.metrics[params.selection_metric]
    return choice.choose(
        settings,
        read_plan(folds),
        inner.headers,
        seeds=params.seeds,
        metric=params.selection_metric,
        better=metric.better,
    )


def train_folds(
    params: CrossValidationParams,
    evaluation: EvaluationParams,
    executor: ExecutorParams,
    settings: Settings,
    folds: Document,
    choices: Sequence[Choice],
    examples: Any,
    before: StoredTrials,
) -> Iterator[TrialRecord | Literal[False]]:
    """Train each arm on each fold with each seed; yields each trial when it is done, so that it is stored at once.

    Raises:
        CompareError: if all trials failed.
    """
    plan = read_plan(folds)
    trials = outer_plan(settings, plan, params.seeds, chosen(settings, folds, choices))
    yield from run_trials(trials, bench(params, evaluation, executor, folds, examples), before)


def pool_predictions(
    params: CrossValidationParams,
    evaluation: EvaluationParams,
    settings: Settings,
    folds: Document,
    choices: Sequence[Choice],
    trials: StoredTrials,
) -> OutOfFold:
    """Collect the rows of all folds: every example once per arm and seed, by a model that never saw its cluster.

    Raises:
        CompareError: if no seed of the control is complete.
        ValueError: if the trials do not belong to these folds.
    """
    suite = suite_of(evaluation)
    return collect(
        settings,
        read_plan(folds),
        chosen(settings, folds, choices),
        trials,
        seeds=params.seeds,
        suite=suite,
        cluster=evaluation.cluster,
        key_of_examples=find_task(evaluation.task).key,
    )


def score_predictions(
    params: CrossValidationParams,
    evaluation: EvaluationParams,
    folds: Document,
    choices: Sequence[Choice],
    rows: OutOfFold,
    commit: str,
) -> Document:
    """Return the document of docs/cross_validation.md."""
    document = build_document(
        rows, read_plan(folds), choices, params, evaluation, suite=suite_of(evaluation)
    )
    return document | {"commit": commit, "run": run_identity()}


def write_predictions(rows: OutOfFold) -> pd.DataFrame:
    """Build a single table of the out-of-fold predictions."""
    return tables.long_predictions(rows)


def write_summary(evaluation: EvaluationParams, result: Document) -> str:
    """Write the summary as Markdown."""
    return tables.summary(result, metrics_of(evaluation, result))


def draw_folds(evaluation: EvaluationParams, result: Document) -> dict[str, Figure]:
    """Draw each primary metric of every arm, with each fold."""
    return forests.draw(result, metrics_of(evaluation, result))


def render_page(
    evaluation: EvaluationParams,
    result: Document,
    answer: Document,
    figures: Mapping[str, bytes],
    parameters: Mapping[str, Any],
) -> str:
    """Render answer, tables and figures as a self-contained HTML page."""
    task, metrics = evaluation.task, metrics_of(evaluation, result)
    parts = {"figures": figures, **tables.page_parts(result, metrics)}
    configuration = configuration_text(parameters, task)
    noun = find_task(task).noun
    return render(Page("cross_validation.html", result, answer, noun, configuration, parts))


def suite_of(evaluation: EvaluationParams) -> MetricSuite:
    """Return the task's metrics."""
    return build_suite(evaluation.task, evaluation.metric_options)


def metrics_of(evaluation: EvaluationParams, result: Document) -> Mapping[str, Metric]:
    """Collect the metrics of a document, with those that only its rows have."""
    return suite_of(evaluation).for_names(result["arms"][result["control"]]["metrics"]).metrics


def chosen(
    settings: Settings, folds: Document, choices: Sequence[Choice]
) -> dict[str, dict[str, str]]:
    """Return fold -> arm -> candidate."""
    return (
        choice.by_fold(choices) if choices else choice.nothing_to_choose(settings, read_plan(folds))
    )


def bench(
    params: CrossValidationParams,
    evaluation: EvaluationParams,
    executor: ExecutorParams,
    folds: Document,
    examples: Any,
) -> Bench:
    """Collect the conditions of the trials; a trial's metrics are those of its fold, without the held-out examples."""
    score = partial(
        score_tested_rows,
        held_out=folds["held_out"],
        suite=suite_of(evaluation),
        cluster=evaluation.cluster,
    )
    return Bench(
        find_preparation(evaluation.task),
        examples,
        score,
        keeps_weights=params.keep == "weights",
        executor=executor,
    )


def score_tested_rows(
    rows: pd.DataFrame, rule: str, *, held_out: Sequence[str], suite: MetricSuite, cluster: str
) -> dict[str, float]:
    """Compute every defined metric of a rule on the examples that a fold tests."""
    is_tested = ~rows[suite.unit.column].astype(str).isin(held_out)
    return score_rows(rows[is_tested], rule, suite=suite, cluster=cluster)
