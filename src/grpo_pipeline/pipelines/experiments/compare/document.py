"""Build the document ``<task>.compare.result`` from the estimates of all arms (docs/compare.md)."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.evaluation.budget import (
    Budget,
    budget_sentences,
    mean_budget,
    read_budget,
)
from grpo_pipeline.pipelines.evaluation.comparison import estimate
from grpo_pipeline.pipelines.experiments.trials.arms import CompareParams
from grpo_pipeline.pipelines.experiments.trials.records import (
    CompareError,
    Plan,
    StoredTrials,
    Trial,
)
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.statistics.alignment import Rules, check_same_units, digest_of_units, split_rules
from grpo_pipeline.statistics.bootstrap import LEVEL, Estimate, cluster_weights
from grpo_pipeline.statistics.changes import change_sentences
from grpo_pipeline.statistics.metric import Metric, MetricSuite
from grpo_pipeline.statistics.over_seeds import (
    BySeed,
    correct_for_number,
    describe_seeds,
    differences_by_seed,
)
from grpo_pipeline.statistics.seed_interval import METHOD, NOT_COVERED
from grpo_pipeline.statistics.wording import ALPHA, few_clusters_sentences, side_of

# Finished trials -> estimates of every arm, seed, rule and metric, all on the same resamples of patients.

# rule -> metric -> seed -> estimate
ArmScores = dict[str, dict[str, dict[int, Estimate]]]


@dataclass(frozen=True)
class Scores:
    """The scores that the table of a comparison is made from.

    Attributes:
        arms: arm -> rule -> metric -> seed -> estimate; an arm without a finished trial is absent.
        cores: the rows that were resampled, of one trial and rule: their number and clusters are those of all.
    """

    arms: Mapping[str, ArmScores]
    cores: pd.DataFrame


def usable(plan: Plan, trials: StoredTrials) -> list[Trial]:
    """Return the trials of the plan that are finished, and were trained with the parameters of the plan."""
    return [trial for trial in plan.trials if why_missing(plan, trial, trials) is None]


def why_missing(plan: Plan, trial: Trial, trials: StoredTrials) -> str | None:
    """Return why a trial does not take part, or None."""
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
        trials: what is stored.
        params: cluster, resamples and seed.
        suite: the task's metrics.
        rules: which rules and metrics of an arm are scored.

    Raises:
        CompareError: if no trial of the control is usable.
        ValueError: if two trials do not hold the same cores.
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
    """Return the rows of the control's first usable trial; those of all other trials must hold the same cores.

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
    """All metrics of an arm's own rule, and the primary ones of the other rules that are shown."""

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
    """Return a trial's prediction rows by rule, in the order of the core ids.

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


# Plain sentences about the document: what was shown for each primary metric, and what is missing.

# (lower, higher) than the control, in words, by which is better.
SIDES = {"higher": ("worse", "better"), "lower": ("better", "worse"), "none": ("lower", "higher")}


def summary(
    document: Mapping[str, Any], metrics: Mapping[str, Metric], *, chance_rule: str
) -> list[str]:
    """Say which arms differ from the control by primary metric, then of every arm what got worse and better, then what failed.

    The first are corrected for the number of comparisons, the second are not, and say how many metrics were looked at.

    Args:
        document: ``<task>.compare.result`` without its summary.
        metrics: the task's metrics.
        chance_rule: of the task's evaluation.
    """
    sentences = few_clusters_sentences(document["n"])
    if len(document["seeds"]) == 1:
        sentences.append(NOT_COVERED)
    sentences += [
        metric_sentence(document, name, metrics[name]) for name in document["primary_metrics"]
    ]
    correction, lost = notes(document)
    return [
        *sentences,
        *correction,
        *change_sentences(document, metrics, chance_rule=chance_rule),
        *lost,
    ]


def notes(document: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Say where the resamples are too few for any comparison to come out, and which trials are not in the table."""
    note = document["correction"].get("note")
    lost = [
        f"{key} ({trial['reason']})" for key, trial in document["trials"].items() if trial["reason"]
    ]
    return (
        [f"{note[0].upper()}{note[1:]}."] if note else [],
        [f"Not in the table: {'; '.join(lost)}."] if lost else [],
    )


def metric_sentence(document: Mapping[str, Any], name: str, metric: Metric) -> str:
    """Return which arms are worse and better than the control (lower and higher, where neither is better)."""
    lower, higher = SIDES[metric.better]
    words: dict[int | None, str] = {
        -1: f"{lower} in",
        1: f"{higher} in",
        0: "no difference shown in",
        None: "no statement about",
    }
    arms: dict[int | None, list[str]] = {side: [] for side in words}
    for arm, found in document["differences"].items():
        arms[side_of(found.get(name))].append(arm)
    # Worse before better, and what is not shown last.
    order = sorted((-1, 1), key=lambda side: words[side], reverse=True)
    parts = [f"{words[side]} {', '.join(arms[side])}" for side in (*order, 0, None) if arms[side]]
    text = "; ".join(parts) or "no arm to compare"
    corrected = document["correction"]["comparisons"]
    how = f", corrected for {corrected} comparisons" if corrected else ""
    return f"{metric.title} against {document['control']}{how}: {text}."


Pair = tuple[str, str]  # arm, metric
Write = Callable[[BySeed], dict[str, Any]]  # the estimates of single seeds -> their mean for JSON


def compare_trials(
    plan: Plan,
    trials: StoredTrials,
    params: CompareParams,
    evaluation: EvaluationParams,
    *,
    suite: MetricSuite,
) -> dict[str, Any]:
    """Score the finished trials, average over the seeds, take paired differences and correct their p-values.

    Args:
        plan: arms and trials, the control first.
        trials: what is stored.
        params: control, primary metrics, rules of the second table.
        evaluation: cluster, resamples and seed.
        suite: the task's metrics.

    Raises:
        CompareError: if no trial of the control is finished, or none measured a primary metric.
    """
    # The columns and not the metrics of the headers: these leave out what is undefined, such as the AUROC of a rare class.
    columns = (trials.predictions(trial.key).columns for trial in usable(plan, trials))
    suite = suite.for_names(dict.fromkeys(name for found in columns for name in found))
    check_measured(params.primary_metrics, suite, where=f"{plan.task}.compare")
    shown = RuleMetrics(list(suite.metrics), params.primary_metrics, params.baseline_rules)
    scores = score_trials(plan, trials, evaluation, suite, rules=shown)
    clusters = int(scores.cores[evaluation.cluster].nunique())
    write = partial(
        describe_seeds, resamples=evaluation.resamples, max_undefined=evaluation.max_undefined
    )
    differences, correction = compare_with_control(
        plan, scores, params.primary_metrics, write, resamples=evaluation.resamples
    )
    arms: dict[str, Any] = {}  # each described, with the metrics of its own rule
    for arm, rules in scores.arms.items():
        described = plan.arms[arm].description
        metrics = {name: write(seeds) for name, seeds in rules[described.rule].items()}
        arms[arm] = described.model_dump(mode="json") | {"metrics": metrics}
    document = {
        "task": plan.task,
        "control": params.control,
        "split": params.split,
        "n": {
            "examples": len(scores.cores),
            "clusters": clusters,
            "cluster": evaluation.cluster,
            "digest": digest_of_units(scores.cores, unit=suite.unit, cluster=evaluation.cluster),
        },
        "seeds": list(params.seeds),
        "primary_metrics": list(params.primary_metrics),
        "interval": {
            "method": METHOD if len(params.seeds) > 1 else "percentile bootstrap of whole clusters",
            "level": LEVEL,
            "resamples": evaluation.resamples,
        },
        "correction": correction,
        "arms": arms,
        "differences": differences,
        "baselines": baseline_section(plan, scores, write),
        "trials": {trial.key: trial_section(plan, trials, trial.key) for trial in plan.trials},
    }
    budgets = budgets_of(plan, trials)
    document["training"] = {arm: budget.document() for arm, budget in budgets.items()}
    few, lost = notes(document)
    return document | {
        "notes": [*few, *lost],
        "summary": [
            *budget_sentences(budgets, control=params.control),
            *summary(document, suite.metrics, chance_rule=evaluation.chance_rule),
        ],
    }


def budgets_of(plan: Plan, trials: StoredTrials) -> dict[str, Budget]:
    """Return what a training of each arm has cost on average over its seeds; nothing of what is not trained step by step."""
    found: dict[str, list[Budget]] = {}
    for trial in usable(plan, trials):
        if plan.arms[trial.arm].description.baseline is None:
            found.setdefault(trial.arm, []).append(read_budget(trials.metric_rows(trial.key)))
    return {arm: mean_budget(budgets) for arm, budgets in found.items()}


def check_measured(primary: Sequence[str], suite: MetricSuite, *, where: str) -> None:
    """Raise CompareError if no trial has a primary metric, ``suite`` being for the names of what they have."""
    for name in primary:
        if name not in suite.metrics:
            raise CompareError(
                f"{where}.primary_metrics must be among what the trials measured, {', '.join(suite.metrics)}, got {name!r}; "
                "correct it, or the setting that measures it, and run again: trained trials are kept"
            )


def compare_with_control(
    plan: Plan, scores: Scores, primary: tuple[str, ...], write: Write, *, resamples: int
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return arm -> metric -> difference to the control, and how the primary ones were corrected together."""
    control = next(iter(plan.arms))
    headlines = {arm: scores.arms[arm][plan.arms[arm].description.rule] for arm in scores.arms}
    gaps = {
        (arm, name): differences_by_seed(by_seed, headlines[control][name])
        for arm, headline in headlines.items()
        if arm != control
        for name, by_seed in headline.items()
    }
    entries = {
        pair: {key: value for key, value in write(gap).items() if key != "n"}
        for pair, gap in gaps.items()
    }
    family = {
        pair: gap
        for pair, gap in gaps.items()
        if pair[1] in primary and entries[pair]["ci95"] is not None
    }
    corrected, critical = correct_for_number(family, resamples=resamples)
    for pair, added in corrected.items():
        entries[pair] |= added
    found = {
        arm: {name: entries[arm, name] for name in headline}
        for arm, headline in headlines.items()
        if arm != control
    }
    return found, describe_correction(len(family), critical, resamples=resamples)


def describe_correction(comparisons: int, critical: float, *, resamples: int) -> dict[str, Any]:
    """Return what was corrected for; a note says where the resamples are too few for any comparison to come out."""
    smallest = 2 / (resamples + 1)
    described: dict[str, Any] = {
        "method": "Holm; simultaneous intervals by max-|t|",
        "family": "arms x primary metrics",
        "comparisons": comparisons,
        "smallest_p": smallest,
        "critical_t": critical if np.isfinite(critical) else None,
    }
    if comparisons * smallest >= ALPHA:
        enough = int(np.ceil(2 * comparisons / ALPHA))
        described["note"] = (
            f"with {resamples} resamples no corrected p-value of {comparisons} comparisons can fall below {ALPHA:.2f}; "
            f"set evaluation.resamples to at least {enough}"
        )
    return described


def baseline_section(plan: Plan, scores: Scores, write: Write) -> dict[str, dict[str, Any]]:
    """Return arm -> rule -> the primary metrics of other points with that arm's decoder."""
    return {
        arm: {
            rule: {"metrics": {name: write(by_seed) for name, by_seed in found.items()}}
            for rule, found in rules.items()
            if rule != plan.arms[arm].description.rule
        }
        for arm, rules in scores.arms.items()
    }


def trial_section(plan: Plan, trials: StoredTrials, key: str) -> Mapping[str, Any]:
    """Return how a trial ended, and why it does not take part."""
    trial = next(trial for trial in plan.trials if trial.key == key)
    reason, header = why_missing(plan, trial, trials), trials.headers.get(key)
    status = "missing" if header is None else header.status
    return {
        "status": status,
        "seconds": None if header is None else header.seconds,
        "reason": reason,
    }
