"""Estimate every arm, seed, rule and metric from finished trials, all on the same resamples of patients."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from grpo_pipeline.pipelines.evaluation.comparison import estimate
from grpo_pipeline.pipelines.experiments.trials.records import (
    CompareError,
    Plan,
    StoredTrials,
    Trial,
)
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.statistics.alignment import Rules, check_same_units, split_rules
from grpo_pipeline.statistics.bootstrap import Estimate, cluster_weights
from grpo_pipeline.statistics.metric import MetricSuite

# rule -> metric -> seed -> estimate
ArmScores = dict[str, dict[str, dict[int, Estimate]]]


@dataclass(frozen=True)
class Scores:
    """The scores behind the table of a comparison.

    Attributes:
        arms: arm -> rule -> metric -> seed -> estimate; an arm without a finished trial is absent.
        cores: the resampled rows, of one trial and rule; all trials hold the same units.
    """

    arms: Mapping[str, ArmScores]
    cores: pd.DataFrame


def usable(plan: Plan, trials: StoredTrials) -> list[Trial]:
    """Return the trials of the plan that are finished, and were trained with the parameters of the plan."""
    return [trial for trial in plan.trials if why_missing(plan, trial, trials) is None]


def why_missing(plan: Plan, trial: Trial, trials: StoredTrials) -> str | None:
    """Write why a trial is left out of the comparison; None where it takes part."""
    header = trials.headers.get(trial.key)
    if header is None:
        return "not trained"
    if header.status == "failed":
        return header.reason or "failed"
    return (
        None
        if header.parameters == plan.arms[trial.arm].parameters
        else "trained with other parameters; run compare again"
    )


def score_trials(
    plan: Plan,
    trials: StoredTrials,
    params: EvaluationParams,
    suite: MetricSuite,
    *,
    rules: "RuleMetrics",
) -> Scores:
    """Score every usable trial.

    Args:
        plan: arms and trials.
        trials: the stored trials.
        params: cluster, resamples and seed.
        suite: the task's metrics.
        rules: chooses the rules and metrics of an arm that are scored.

    Raises:
        CompareError: if no trial of the control is usable.
        ValueError: if two trials hold different units.
    """
    cores = control_cores(plan, trials, params, suite)
    weights = cluster_weights(cores[params.cluster], resamples=params.resamples, seed=params.seed)
    arms: dict[str, ArmScores] = {}
    for trial in usable(plan, trials):
        tables = aligned(trial, plan, trials, suite, cluster=params.cluster)
        for rule, names in rules.of(plan.arms[trial.arm].description.rule, tables).items():
            check_same_units(
                tables[rule],
                cores,
                who=f"{trial.key} / {rule}",
                unit=suite.unit,
                cluster=params.cluster,
            )
            scores = arms.setdefault(trial.arm, {}).setdefault(rule, {})
            for name in names:
                scores.setdefault(name, {})[trial.seed] = estimate(
                    suite.metrics[name], tables[rule], weights, cluster=params.cluster
                )
    return Scores({arm: arms[arm] for arm in plan.arms if arm in arms}, cores)


def control_cores(
    plan: Plan, trials: StoredTrials, params: EvaluationParams, suite: MetricSuite
) -> pd.DataFrame:
    """Find the rows of the control's first usable trial; all other trials must hold the same units.

    Raises:
        CompareError: if the control has no usable trial.
    """
    control = next(iter(plan.arms))
    first = next((trial for trial in usable(plan, trials) if trial.arm == control), None)
    if first is None:
        lost = next(trial for trial in plan.trials if trial.arm == control)
        reason = why_missing(plan, lost, trials)
        raise CompareError(
            f"the control {control} must have a finished trial, got none ({lost.key}: {reason}); train it first"
        )
    return aligned(first, plan, trials, suite, cluster=params.cluster)[
        plan.arms[control].description.rule
    ]


@dataclass(frozen=True)
class RuleMetrics:
    """A choice of metrics: all metrics of an arm's own rule, the primary metrics of the other shown rules."""

    metrics: Collection[str]
    primary: Collection[str]
    baselines: Iterable[str]

    def of(self, headline: str, tables: Rules) -> dict[str, list[str]]:
        """Return rule -> metrics."""
        others = {
            rule: list(self.primary)
            for rule in self.baselines
            if rule in tables and rule != headline
        }
        return {headline: list(self.metrics)} | others


def aligned(
    trial: Trial, plan: Plan, trials: StoredTrials, suite: MetricSuite, *, cluster: str
) -> Rules:
    """Read a trial's prediction rows by rule, in the order of the units' ids.

    Raises:
        ValueError: if the rows lack a column, repeat a core, or do not hold the arm's rule.
    """
    rules = split_rules(trials.predictions(trial.key), suite, arm=trial.key, cluster=cluster)
    rule = plan.arms[trial.arm].description.rule
    if rule not in rules:
        raise ValueError(
            f"predictions of {trial.key} must hold the rule {rule!r}, got {sorted(rules)}; correct the arm's rule"
        )
    return rules
