"""Build the comparison document of docs/metrics.md from the prediction tables of all arms."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.evaluation.budget import budget_sentences, read_budget
from grpo_pipeline.pipelines.evaluation.unscored_samples import count_unscored, unscored_sentences
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.training.best import KEPT
from grpo_pipeline.runs.progress import track
from grpo_pipeline.statistics.alignment import (
    Rules,
    align_arms,
    check_same_units,
    digest_of_units,
    split_rules,
)
from grpo_pipeline.statistics.bar import bar_sentences, has_moved, judge_bar, longer_than
from grpo_pipeline.statistics.baseline_verdicts import baseline_sentences, verdicts
from grpo_pipeline.statistics.bootstrap import (
    Estimate,
    cluster_weights,
    describe,
    few_clusters_reason,
    paired_difference,
)
from grpo_pipeline.statistics.changes import change_sentences
from grpo_pipeline.statistics.metric import Bar, Metric, MetricSuite
from grpo_pipeline.statistics.seed_interval import NOT_COVERED
from grpo_pipeline.statistics.wording import few_clusters_sentences

Estimates = dict[str, Estimate]


def best_validation(rows: pd.DataFrame) -> dict[str, Any] | None:
    """Find the step at which an arm's weights were best on the validation split, with the best and the last value.

    Args:
        rows: metric rows of an arm (docs/metrics.md). They say which weights were kept.

    Returns:
        ``metric``; ``kind``, the model that holds the best weights; ``best`` and ``last``, each with ``step`` (number of steps
        done) and ``value``. None where no best weights were kept.
    """
    starts = tuple(KEPT.values())
    names = [
        name for name in map(str, rows) if name.startswith(starts) and rows[name].notna().any()
    ]
    if not names:
        return None
    kind, _, metric = names[0].partition("/")
    validated = rows[rows["split"] == "val"]
    found = {"best": validated[validated[names[0]].notna()], "last": validated}
    return {"metric": metric, "kind": kind} | {
        which: {"step": int(one["step"].iloc[-1]) + 1, "value": as_known(one[metric].iloc[-1])}
        for which, one in found.items()
    }


def as_known(value: float) -> float | None:
    """Return a finite value, else None."""
    return float(value) if np.isfinite(value) else None


def compare(
    arms: Mapping[str, pd.DataFrame],
    params: EvaluationParams,
    *,
    suite: MetricSuite,
    commit: str,
    training: Mapping[str, pd.DataFrame] | None = None,
    instead: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """Score every arm and rule on the same resamples, and compute their paired differences.

    Args:
        arms: arm -> prediction rows.
        params: names of control, rules and cluster; resamples and seed.
        suite: the task's metrics.
        commit: git commit of the code, or "unknown".
        training: arm -> metric rows, which hold the cost of its training and the samples without a reward.
        instead: prediction rows of alternatives to the policy, such as classifiers, each under a rule of its own. They are
            compared with the baseline arm.

    Raises:
        ValueError: if the control or the baseline arm is missing, or the tables do not belong together.
    """
    training = training or {}
    check_arms(arms, params)
    predicted = [*arms.values(), *([] if instead is None else [instead])]
    suite = suite.for_names(dict.fromkeys(name for rows in predicted for name in rows.columns))
    tables = align_arms(arms, suite, headline=params.headline_rule, cluster=params.cluster)
    check_rules(tables, params)
    cores = tables[params.control][params.rule_of(params.control)]
    weights = cluster_weights(cores[params.cluster], resamples=params.resamples, seed=params.seed)
    if instead is not None and len(instead):
        tables[params.baseline_arm] |= align_baselines(
            instead, cores, suite, cluster=params.cluster
        )
    shown = track(tables.items(), f"compare {params.task}", len(tables))
    scores = {
        arm: score_rules(rules, weights, suite.metrics, cluster=params.cluster)
        for arm, rules in shown
    }
    clusters = int(cores[params.cluster].nunique())
    # The section unscored of a comparison; none where no arm has a reward of the user's.
    found = count_unscored(arms, training, params)
    budgets = {arm: read_budget(rows) for arm, rows in training.items() if arm in arms}
    document = {
        "task": params.task,
        "control": params.control,
        "split": params.split,
        "n": {
            "examples": len(cores),
            "clusters": clusters,
            "cluster": params.cluster,
            "digest": digest_of_units(cores, unit=suite.unit, cluster=params.cluster),
        },
        "seed": params.seed,
        "commit": commit,
        "headline": list(suite.headline),
        "interval": {
            "method": "percentile bootstrap of whole clusters",
            "level": 0.95,
            "resamples": params.resamples,
            # Without intervals, the sentence on what they do not cover is dropped.
            **({} if few_clusters_reason(clusters) else {"not_covered": NOT_COVERED}),
        },
        **score_sections(scores, params),
        **({"unscored": found} if any(found.values()) else {}),
    }
    document["verdicts"] = verdicts(document["own_minus_baseline"], suite.metrics, suite.judged)
    document["arm_verdicts"] = verdicts(document["own_minus_arms"], suite.metrics, suite.judged)
    if budgets:
        document["training"] = {arm: budget.document() for arm, budget in budgets.items()}
    kept = {arm: best for arm in budgets if (best := best_validation(training[arm])) is not None}
    if kept:
        document["best_validation"] = kept
    if params.not_run is not None:
        document["not_run"] = params.not_run
    if suite.bar is not None:
        document |= bar_sections(document, tables, scores, suite.bar, suite.metrics, params)
    return document | {
        "summary": [
            *budget_sentences(budgets, control=params.control),
            *opening_sentences(document, params),
            *bar_sentences(document, suite.bar, suite.metrics),
            *change_sentences(
                document | {"policy_gain": gains_of_moved(document)},
                suite.metrics,
                chance_rule=params.chance_rule,
            ),
            *suite.summary(document),
            *baseline_sentences(document, suite.metrics, suite.judged, suite.bar),
            *unscored_sentences(document.get("unscored", {})),
        ]
    }


def gains_of_moved(document: Mapping[str, Any]) -> dict[str, Any]:
    """Select the gains over the start, of the arms whose policy no longer chooses as it did there."""
    moved = document.get("moved", {})
    return {
        arm: gains for arm, gains in document["policy_gain"].items() if moved.get(arm) is not False
    }


def opening_sentences(document: Mapping[str, Any], params: EvaluationParams) -> Iterator[str]:
    """Write the warnings that come before any verdict: a missing control, or too few clusters."""
    if params.not_run is not None:
        beside = (
            f"the others are compared with {params.control}"
            if len(document["arms"]) > 1
            else "nothing says what its reward has added"
        )
        yield f"{params.not_run}, the control, was not trained in this run: {beside}."
    yield from few_clusters_sentences(document["n"])


def bar_sections(
    document: Mapping[str, Any],
    tables: Mapping[str, Rules],
    scores: Mapping[str, Mapping[str, Estimates]],
    bar: Bar,
    metrics: Mapping[str, Metric],
    params: EvaluationParams,
) -> dict[str, Any]:
    """Build the sections ``moved`` and ``bar``, of the arms that are judged by their policy's own choices.

    ``moved`` says of each of them whether its policy chooses otherwise than at its start, where that is measured.
    """
    rule, arms = params.headline_rule, [arm for arm in scores if arm not in params.rules]
    wanted = (bar.start, bar.shuffled, *bar.fixed)
    gaps, values = {}, {}
    for arm in arms:
        others = {name: scores[arm][name] for name in wanted if name in scores[arm]}
        own = {name: scores[arm][rule][name] for name in bar.metrics}
        gaps[arm] = {name: describe_all(differences(own, other)) for name, other in others.items()}
        values[arm] = {
            name: {metric: as_known(other[metric].value) for metric in bar.metrics}
            for name, other in others.items()
        }
    judged = judge_bar(
        gaps,
        values,
        bar,
        metrics,
        control=params.control,
        differences=document["differences"],
        has_control=params.not_run is None,
        longer=longer_than(document.get("training", {}), params.control),
    )
    moved = {
        arm: has_moved(tables[arm][rule], tables[arm][bar.start])
        for arm in arms
        if bar.start in tables[arm]
    }
    return {"moved": moved, "bar": judged}


def check_arms(arms: Mapping[str, pd.DataFrame], params: EvaluationParams) -> None:
    """Raise ValueError if the control or the baseline arm is not among the arms."""
    for field, arm in (("control", params.control), ("baseline_arm", params.baseline_arm)):
        if arm not in arms:
            raise ValueError(
                f"{params.task}.evaluation.{field} must be one of the arms {', '.join(arms)}, got {arm!r}"
            )


def check_rules(tables: Mapping[str, Rules], params: EvaluationParams) -> None:
    """Raise ValueError if an arm's rows lack the rule that the arm is judged by."""
    for arm, rules in tables.items():
        if (rule := params.rule_of(arm)) not in rules:
            raise ValueError(
                f"{params.task}.evaluation.rules.{arm} must be one of the rules {', '.join(rules)}, got {rule!r}"
            )


def score_rules(
    rules: Rules, weights: np.ndarray, metrics: Mapping[str, Metric], *, cluster: str
) -> dict[str, Estimates]:
    """Return rule -> metric -> estimate, all on the same resamples."""
    return {
        rule: {
            name: estimate(metric, rows, weights, cluster=cluster)
            for name, metric in metrics.items()
        }
        for rule, rows in rules.items()
    }


def estimate(metric: Metric, rows: pd.DataFrame, weights: np.ndarray, *, cluster: str) -> Estimate:
    """Estimate a metric in the sample (every weight 1) and in each resample of whole clusters."""
    values = metric(rows, np.vstack([np.ones(len(rows)), weights]))
    return Estimate(
        value=float(values[0]),
        resamples=values[1:],
        n=metric.count(rows),
        reason=metric.reason,
        clusters=metric.count_clusters(rows, cluster),
        bounds=metric.bounds,
    )


def score_sections(
    scores: Mapping[str, dict[str, Estimates]], params: EvaluationParams
) -> dict[str, Any]:
    """Build the sections arms, differences, policy_gain, baselines, own_minus_baseline and own_minus_arms.

    An arm that is not judged by its policy's own choices (``rules``) has no gain over the policy that training began with.
    """
    chance, baseline_arm = params.chance_rule, params.baseline_arm
    own = {arm: rules[params.rule_of(arm)] for arm, rules in scores.items()}
    others = {
        name: estimates
        for name, estimates in scores[baseline_arm].items()
        if name != params.rule_of(baseline_arm)
    }

    def gaps(treated: Estimates, control: Estimates) -> dict[str, Any]:
        return without_n(describe_all(differences(treated, control)))

    return {
        "arms": {arm: {"metrics": describe_all(estimates)} for arm, estimates in own.items()},
        "differences": {
            arm: gaps(estimates, own[params.control])
            for arm, estimates in own.items()
            if arm != params.control
        },
        "policy_gain": {
            arm: gaps(own[arm], rules[chance])
            for arm, rules in scores.items()
            if chance in rules and arm not in params.rules
        },
        "baseline_arm": baseline_arm,
        "baselines": {
            name: {"metrics": describe_all(estimates)} for name, estimates in others.items()
        },
        "own_minus_baseline": {
            name: gaps(own[baseline_arm], estimates) for name, estimates in others.items()
        },
        "own_minus_arms": {
            arm: gaps(own[baseline_arm], estimates)
            for arm, estimates in own.items()
            if arm != baseline_arm
        },
        "rules": {arm: params.rule_of(arm) for arm in scores},
    }


def describe_all(estimates: Estimates) -> dict[str, dict[str, Any]]:
    """Return value, interval and n of each metric."""
    return {name: describe(one) for name, one in estimates.items()}


def differences(treated: Estimates, control: Estimates) -> Estimates:
    """Return treated - control of each metric, inside each resample."""
    return {name: paired_difference(one, control[name]) for name, one in treated.items()}


def without_n(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Drop the number of units from differences; the arms' own entries state it."""
    return {
        name: {key: value for key, value in entry.items() if key != "n"}
        for name, entry in entries.items()
    }


def align_baselines(
    rows: pd.DataFrame, cores: pd.DataFrame, suite: MetricSuite, *, cluster: str
) -> Rules:
    """Return the rows of each baseline in the order of the arms' units.

    Raises:
        ValueError: if a baseline was not asked about exactly these units.
    """
    rules = split_rules(rows, suite, arm="the baselines", cluster=cluster)
    for rule, table in rules.items():
        check_same_units(table, cores, who=rule, unit=suite.unit, cluster=cluster)
    return rules
