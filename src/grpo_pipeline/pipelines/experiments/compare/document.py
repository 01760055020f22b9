"""Build the document ``<task>.compare.result`` from the estimates of all arms (docs/compare.md)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from grpo_pipeline.pipelines.evaluation.budget import (
    Budget,
    budget_sentences,
    mean_budget,
    read_budget,
)
from grpo_pipeline.pipelines.experiments.compare.arm_scores import (
    RuleMetrics,
    Scores,
    score_trials,
    usable,
    why_missing,
)
from grpo_pipeline.pipelines.experiments.compare.sentences import notes, summary
from grpo_pipeline.pipelines.experiments.trials.records import (
    CompareError,
    Plan,
    StoredTrials,
)
from grpo_pipeline.pipelines.experiments.trials.trial_params import CompareParams
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.statistics.alignment import digest_of_units
from grpo_pipeline.statistics.bootstrap import LEVEL
from grpo_pipeline.statistics.metric import MetricSuite
from grpo_pipeline.statistics.over_seeds import (
    BySeed,
    correct_for_number,
    describe_seeds,
    differences_by_seed,
)
from grpo_pipeline.statistics.seed_interval import METHOD
from grpo_pipeline.statistics.wording import ALPHA

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
        trials: the stored trials.
        params: control, primary metrics, rules of the second table.
        evaluation: cluster, resamples and seed.
        suite: the task's metrics.

    Raises:
        CompareError: if no trial of the control is finished, or no trial measured a primary metric.
    """
    # Columns, not the metrics in the headers: a header leaves out undefined metrics, such as the AUROC of a rare class.
    columns = (trials.predictions(trial.key).columns for trial in usable(plan, trials))
    suite = suite.for_names(dict.fromkeys(name for found in columns for name in found))
    check_measured(params.primary_metrics, suite, where=f"{plan.task}.compare")
    shown = RuleMetrics(list(suite.metrics), params.primary_metrics, params.baseline_rules)
    scores = score_trials(plan, trials, evaluation, suite, rules=shown)
    clusters = int(scores.cores[evaluation.cluster].nunique())
    write = partial(describe_seeds, resamples=evaluation.resamples)
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
    """Compute the mean budget of each arm over its seeds; an arm that is not trained step by step has none."""
    found: dict[str, list[Budget]] = {}
    for trial in usable(plan, trials):
        if plan.arms[trial.arm].description.baseline is None:
            found.setdefault(trial.arm, []).append(read_budget(trials.metric_rows(trial.key)))
    return {arm: mean_budget(budgets) for arm, budgets in found.items()}


def check_measured(primary: Sequence[str], suite: MetricSuite, *, where: str) -> None:
    """Raise CompareError if no trial has a primary metric; ``suite`` holds the metrics that the trials have."""
    for name in primary:
        if name not in suite.metrics:
            raise CompareError(
                f"{where}.primary_metrics must be among what the trials measured, {', '.join(suite.metrics)}, got {name!r}; "
                "correct it, or the setting that measures it, and run again: trained trials are kept"
            )


def compare_with_control(
    plan: Plan, scores: Scores, primary: tuple[str, ...], write: Write, *, resamples: int
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Compare each arm with the control: arm -> metric -> difference, and the correction of the primary differences."""
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
    """Describe the correction for multiple comparisons; a note says if the resamples are too few for it."""
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
    """List the other rules of each arm: arm -> rule -> the primary metrics of that rule's points with the arm's decoder."""
    return {
        arm: {
            rule: {"metrics": {name: write(by_seed) for name, by_seed in found.items()}}
            for rule, found in rules.items()
            if rule != plan.arms[arm].description.rule
        }
        for arm, rules in scores.arms.items()
    }


def trial_section(plan: Plan, trials: StoredTrials, key: str) -> Mapping[str, Any]:
    """Describe how a trial ended, and why it is left out if it is."""
    trial = next(trial for trial in plan.trials if trial.key == key)
    reason, header = why_missing(plan, trial, trials), trials.headers.get(key)
    status = "missing" if header is None else header.status
    return {
        "status": status,
        "seconds": None if header is None else header.seconds,
        "reason": reason,
    }
