"""Nodes of the comparison of many arms."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.experiments.compare import page_tables, tables
from grpo_pipeline.pipelines.experiments.compare.document import compare_trials
from grpo_pipeline.pipelines.experiments.compare.forests import forest
from grpo_pipeline.pipelines.experiments.trials.arms import ResolvedArm, resolve_arms
from grpo_pipeline.pipelines.experiments.trials.engine import Bench, run_trials
from grpo_pipeline.pipelines.experiments.trials.records import (
    Plan,
    StoredTrials,
    TrialRecord,
    plan_grid,
)
from grpo_pipeline.pipelines.experiments.trials.task_lookup import find_preparation
from grpo_pipeline.pipelines.experiments.trials.trial_params import CompareParams
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting.page import Page, configuration_text, plain, render
from grpo_pipeline.runs.executor import ExecutorParams
from grpo_pipeline.runs.run_identity import run_identity
from grpo_pipeline.statistics.alignment import split_rules
from grpo_pipeline.statistics.metric import Metric, MetricSuite
from grpo_pipeline.tasks import find_task

REWARD = "reward"  # the metric, and the section whose terms it sums


def arrange_trials(
    params: CompareParams, evaluation: EvaluationParams, parameters: Mapping[str, Any]
) -> Plan:
    """Resolve and check the parameters of every arm; needs no data, so that a misspelt name fails before anything else runs.

    Raises:
        ValueError: naming the arm and the path of what is wrong.
    """
    task = evaluation.task
    check_names(params, build_suite(task, evaluation.metric_options), task=task)
    arms = resolve_arms(
        params, plain(parameters)[task], task=task, models=find_preparation(task).models
    )
    check_reward(params, arms, task=task)
    return plan_grid(task, arms, params.seeds)


def check_names(params: CompareParams, suite: MetricSuite, *, task: str) -> None:
    """Raise ValueError if a primary metric or a rule is unknown to the task."""
    known = suite.for_names(params.primary_metrics).metrics
    for name in params.primary_metrics:
        if name not in known:
            raise ValueError(
                f"{task}.compare.primary_metrics must be among {', '.join(known)}, got {name!r}; correct it"
            )
    rules = {f"arms.{name}.rule": arm.rule for name, arm in params.present.items()}
    for path, rule in rules.items() | {("baseline_rules", rule) for rule in params.baseline_rules}:
        if rule not in suite.rules:
            raise ValueError(
                f"{task}.compare.{path} must be among {', '.join(suite.rules)}, got {rule!r}; correct it"
            )


def check_reward(params: CompareParams, arms: Mapping[str, ResolvedArm], *, task: str) -> None:
    """Raise ValueError if arms have different rewards: the column ``reward`` has each arm's own weights."""
    control = arms[params.control].parameters.get(REWARD)
    other = [name for name, arm in arms.items() if arm.parameters.get(REWARD) != control]
    if REWARD in params.primary_metrics and other:
        raise ValueError(
            f"{task}.compare.primary_metrics must not hold {REWARD!r} where arms weigh its parts differently, got it with the "
            f"arm {other[0]}; name a part (reward_…) that means the same in every arm"
        )


def train_trial(
    params: CompareParams,
    evaluation: EvaluationParams,
    executor: ExecutorParams,
    plan: Plan,
    examples: Any,
    before: StoredTrials,
) -> Iterator[TrialRecord | Literal[False]]:
    """Train the trials that are not finished; yields each trial when it is done, so that it is stored at once.

    Raises:
        CompareError: if all trials failed.
    """
    suite = build_suite(evaluation.task, evaluation.metric_options)
    score = partial(score_rows, suite=suite, cluster=evaluation.cluster)
    bench = Bench(
        find_preparation(evaluation.task),
        examples,
        score,
        split=params.split,
        keeps_weights=params.keep == "weights",
        executor=executor,
    )
    yield from run_trials(plan, bench, before)


def score_rows(
    rows: pd.DataFrame, rule: str, *, suite: MetricSuite, cluster: str
) -> dict[str, float]:
    """Compute every defined metric of a rule on the whole split, with the components of a user's reward.

    Raises:
        ValueError: if the rows lack the rule.
    """
    suite = suite.for_names(rows.columns)
    rules = split_rules(rows, suite, arm="this trial", cluster=cluster)
    if rule not in rules:
        raise ValueError(
            f"predictions must hold the rule {rule!r}, got {sorted(rules)}; correct the arm's rule"
        )
    found = rules[rule]
    once = np.ones((1, len(found)))
    values = {name: float(metric(found, once)[0]) for name, metric in suite.metrics.items()}
    return {name: value for name, value in values.items() if np.isfinite(value)}


def tabulate_trials(
    params: CompareParams,
    evaluation: EvaluationParams,
    plan: Plan,
    trials: StoredTrials,
    commit: str,
) -> dict[str, Any]:
    """Compare the finished trials on the held-out split.

    Returns:
        The document of docs/compare.md.

    Raises:
        CompareError: if no trial of the control is finished.
        ValueError: if the trials do not belong together.
    """
    suite = build_suite(evaluation.task, evaluation.metric_options)
    return compare_trials(plan, trials, params, evaluation, suite=suite) | {
        "commit": commit,
        "run": run_identity(),
    }


def write_tables(
    evaluation: EvaluationParams, result: Mapping[str, Any]
) -> tuple[pd.DataFrame, str]:
    """Build the long table (a row per arm, rule and metric) and the summary as Markdown."""
    metrics = metrics_of(evaluation, result)
    return tables.long_table(result), tables.summary(result, metrics)


def draw_forests(evaluation: EvaluationParams, result: Mapping[str, Any]) -> dict[str, Figure]:
    """Draw the differences to the control, a picture per primary metric."""
    metrics = metrics_of(evaluation, result)
    return {
        f"{name}.svg": forest(result, name, metrics[name]) for name in result["primary_metrics"]
    }


def render_page(
    evaluation: EvaluationParams,
    result: Mapping[str, Any],
    answer: Mapping[str, Any],
    forests: Mapping[str, bytes],
    parameters: Mapping[str, Any],
) -> str:
    """Render answer, tables and figures as a self-contained HTML page."""
    metrics, task = metrics_of(evaluation, result), evaluation.task
    configuration = configuration_text(parameters, task)
    parts = page_tables.page_parts(result, metrics, forests)
    return render(Page("compare.html", result, answer, find_task(task).noun, configuration, parts))


def metrics_of(evaluation: EvaluationParams, result: Mapping[str, Any]) -> Mapping[str, Metric]:
    """Return the metrics of the document by name."""
    suite = build_suite(evaluation.task, evaluation.metric_options)
    return suite.for_names(result["arms"][result["control"]]["metrics"]).metrics
