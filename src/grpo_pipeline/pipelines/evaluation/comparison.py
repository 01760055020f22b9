"""Aligned prediction tables -> the comparison document of docs/metrics.md."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.evaluation.alignment import Rules, align_arms
from grpo_pipeline.pipelines.evaluation.bootstrap import Estimate, cluster_weights, describe, paired_difference
from grpo_pipeline.pipelines.evaluation.changes import change_sentences
from grpo_pipeline.pipelines.evaluation.over_seeds import NOT_COVERED
from grpo_pipeline.pipelines.evaluation.params import EvaluationParams
from grpo_pipeline.pipelines.evaluation.unscored import describe_unscored, unscored_sentences
from grpo_pipeline.tasks.metric import Metric, MetricSuite

Estimates = dict[str, Estimate]


def compare(
    arms: Mapping[str, pd.DataFrame],
    params: EvaluationParams,
    *,
    suite: MetricSuite,
    commit: str,
    training: Mapping[str, pd.DataFrame] | None = None,
) -> dict[str, Any]:
    """Score every arm and rule on the same resamples and take the paired differences.

    Args:
        arms: arm -> prediction rows.
        params: names of control, rules and cluster; resamples and seed.
        suite: the task's metrics.
        commit: git commit of the code, or "unknown".
        training: arm -> metric rows, for what rewards of the user's gave no value while it was trained.

    Raises:
        ValueError: if the control or the baseline arm is missing, or the tables do not belong together.
    """
    check_arms(arms, params)
    suite = suite.for_names(dict.fromkeys(name for rows in arms.values() for name in rows.columns))
    tables = align_arms(arms, suite, headline=params.headline_rule, cluster=params.cluster)
    cores = tables[params.control][params.headline_rule]
    weights = cluster_weights(cores[params.cluster], resamples=params.resamples, seed=params.seed)
    scores = {arm: score_rules(rules, weights, suite.metrics) for arm, rules in tables.items()}
    clusters = int(cores[params.cluster].nunique())
    document = {
        "task": params.task,
        "control": params.control,
        "split": params.split,
        "n": {"examples": len(cores), "clusters": clusters, "cluster": params.cluster},
        "seed": params.seed,
        "commit": commit,
        "headline": list(suite.headline),
        "interval": {
            "method": "percentile bootstrap of whole clusters",
            "level": 0.95,
            "resamples": params.resamples,
            "not_covered": NOT_COVERED,
        },
        **score_sections(scores, params, clusters=clusters),
        **describe_unscored(arms, training or {}, rule=params.headline_rule, split=params.split),
    }
    told = change_sentences(document, suite.metrics, chance_rule=params.chance_rule)
    return document | {"verdict": [*told, *suite.verdict(document), *unscored_sentences(document.get("unscored", {}))]}


def check_arms(arms: Mapping[str, pd.DataFrame], params: EvaluationParams) -> None:
    """Raise ValueError if the control or the baseline arm is not among the arms."""
    for field, arm in (("control", params.control), ("baseline_arm", params.baseline_arm)):
        if arm not in arms:
            raise ValueError(f"{params.task}.evaluation.{field} must be one of the arms {', '.join(arms)}, got {arm!r}")


def score_rules(rules: Rules, weights: np.ndarray, metrics: Mapping[str, Metric]) -> dict[str, Estimates]:
    """Return rule -> metric -> estimate, all on the same resamples."""
    return {rule: {name: estimate(metric, rows, weights) for name, metric in metrics.items()} for rule, rows in rules.items()}


def estimate(metric: Metric, rows: pd.DataFrame, weights: np.ndarray) -> Estimate:
    """Return one metric of the sample (every weight 1) and of each resample."""
    values = metric(rows, np.vstack([np.ones(len(rows)), weights]))
    return Estimate(value=float(values[0]), resamples=values[1:], n=metric.count(rows), reason=metric.reason)


def score_sections(scores: Mapping[str, dict[str, Estimates]], params: EvaluationParams, *, clusters: int) -> dict[str, Any]:
    """Return the sections arms, differences, policy_gain and baselines."""
    rule, chance = params.headline_rule, params.chance_rule

    def entries(estimates: Estimates) -> dict[str, Any]:
        return {name: describe(one, clusters=clusters, max_undefined=params.max_undefined) for name, one in estimates.items()}

    def gaps(treated: Estimates, control: Estimates) -> dict[str, Any]:
        differences = {name: paired_difference(one, control[name]) for name, one in treated.items()}
        return {name: {key: value for key, value in entry.items() if key != "n"} for name, entry in entries(differences).items()}

    return {
        "arms": {arm: {"metrics": entries(rules[rule])} for arm, rules in scores.items()},
        "differences": {
            arm: gaps(rules[rule], scores[params.control][rule]) for arm, rules in scores.items() if arm != params.control
        },
        "policy_gain": {arm: gaps(rules[rule], rules[chance]) for arm, rules in scores.items() if chance in rules},
        "baseline_arm": params.baseline_arm,
        "baselines": {
            name: {"metrics": entries(estimates)} for name, estimates in scores[params.baseline_arm].items() if name != rule
        },
    }
