"""Collect the predictions of all folds' models, and those of the held-out examples, in a table per arm and seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from grpo_pipeline.pipelines.evaluation.budget import Budget, mean_budget, read_budget
from grpo_pipeline.pipelines.experiments.cross_validation.candidates import Settings, trial_arm
from grpo_pipeline.pipelines.experiments.cross_validation.fold_plan import Choices
from grpo_pipeline.pipelines.experiments.trials.records import CompareError, StoredTrials
from grpo_pipeline.statistics.alignment import split_rules
from grpo_pipeline.statistics.fold_averages import FOLD
from grpo_pipeline.statistics.metric import MetricSuite, Unit
from grpo_pipeline.tasks.folds import FoldPlan

BySeed = Mapping[int, pd.DataFrame]


@dataclass(frozen=True)
class OutOfFold:
    """The rows of each arm's own rule, sorted by the unit's id, with the column ``fold``.

    Attributes:
        tested: arm -> seed -> each example once, predicted by the model that did not train on it.
        held_out: arm -> seed -> each held-out example once per fold's model; empty without held-out examples.
        missing: key of an unfinished trial -> the reason; the arm's rows of that seed are absent.
        budgets: arm -> mean cost of a training over seeds and folds, for arms that are trained step by step.
    """

    tested: Mapping[str, BySeed]
    held_out: Mapping[str, BySeed]
    missing: Mapping[str, str]
    budgets: Mapping[str, Budget] = field(default_factory=dict)


def collect(
    settings: Settings,
    plan: FoldPlan,
    choices: Choices,
    trials: StoredTrials,
    *,
    seeds: Sequence[int],
    suite: MetricSuite,
    cluster: str,
    key_of_examples: str,
) -> OutOfFold:
    """Read the trials of every arm and seed whose folds are all finished.

    Raises:
        CompareError: if no seed of the control is complete.
        ValueError: if a trial's rows do not hold exactly the examples that its fold tests and the held-out ones.
    """
    tested: dict[str, dict[int, pd.DataFrame]] = {arm: {} for arm in settings.arms}
    held_out: dict[str, dict[int, pd.DataFrame]] = {arm: {} for arm in settings.arms}
    missing: dict[str, str] = {}
    budgets: dict[str, list[Budget]] = {}
    for arm in settings.arms:
        description = next(iter(settings.arms[arm].values())).description
        rule = description.rule
        for seed in seeds:
            keys = {
                fold.name: f"{trial_arm(arm, choices[fold.name][arm])}.seed{seed}.fold{number}"
                for number, fold in enumerate(plan.folds)
            }
            lost = {
                key: reason
                for key in keys.values()
                if (reason := why_missing(trials, key)) is not None
            }
            missing |= lost
            if not lost:
                rows = {fold: trials.predictions(key) for fold, key in keys.items()}
                check_rows(rows, plan, keys, unit=suite.unit, key=key_of_examples)
                own, others = divide(rows, plan, rule, suite=suite, cluster=cluster)
                tested[arm][seed], held_out[arm][seed] = own, others
                if description.baseline is None:
                    counted = [read_budget(trials.metric_rows(key)) for key in keys.values()]
                    budgets.setdefault(arm, []).extend(counted)
    control = next(iter(settings.arms))
    if not tested[control]:
        key, reason = next(
            (key, reason) for key, reason in missing.items() if key.startswith(f"{control}.")
        )
        raise CompareError(
            f"the control {control} must have a seed whose folds all finished, got none ({key}: {reason})"
        )
    means = {arm: mean_budget(found) for arm, found in budgets.items()}
    return OutOfFold(tested, held_out if plan.held_out else {}, missing, means)


def why_missing(trials: StoredTrials, key: str) -> str | None:
    """Write why a trial has no predictions; None where it has some."""
    header = trials.headers.get(key)
    if header is None:
        return "not trained"
    return None if header.status == "finished" else header.reason or "failed"


def check_rows(
    rows: Mapping[str, pd.DataFrame],
    plan: FoldPlan,
    keys: Mapping[str, str],
    *,
    unit: Unit,
    key: str,
) -> None:
    """Raise ValueError unless each trial predicted exactly the examples of its fold's test part and the held-out ones.

    Where a row is a sample of its own and no example (``key`` names examples), nothing is checked.
    """
    for fold in plan.folds if unit.column == key else ():
        found, wanted = set(rows[fold.name][unit.column].astype(str)), {*fold.test, *plan.held_out}
        if found != wanted:
            example = min(found ^ wanted)
            raise ValueError(
                f"predictions of {keys[fold.name]} must hold the {len(wanted)} {unit.noun}s that its fold tests, got "
                f"{len(found)} ({unit.noun} {example!r} is on one side only); the folds have changed: run cross_validate again"
            )


def divide(
    rows: Mapping[str, pd.DataFrame], plan: FoldPlan, rule: str, *, suite: MetricSuite, cluster: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Divide the rows of a rule into out-of-fold rows and rows of held-out examples."""
    parts = {
        name: prepared(part, rule, suite=suite, cluster=cluster).assign(**{FOLD: name})
        for name, part in rows.items()
    }
    key = suite.unit.column
    everything = pd.concat(parts.values()).sort_values(
        [key, FOLD], kind="stable", ignore_index=True
    )
    is_held_out = everything[key].isin(plan.held_out)
    return everything[~is_held_out].reset_index(drop=True), everything[is_held_out].reset_index(
        drop=True
    )


def prepared(rows: pd.DataFrame, rule: str, *, suite: MetricSuite, cluster: str) -> pd.DataFrame:
    """Select the rows of a rule in a trial, checked and with the columns that compare its rules.

    Raises:
        ValueError: if the rule is not there.
    """
    rules = split_rules(rows, suite, arm="a trial", cluster=cluster)
    if rule not in rules:
        raise ValueError(
            f"predictions must hold the rule {rule!r}, got {sorted(rules)}; correct the arm's rule"
        )
    return rules[rule]


def ensemble(held_out: pd.DataFrame, key: str) -> pd.DataFrame:
    """Build a row per held-out example: float columns are the mean over the folds' models, others stay as they are."""
    groups = held_out.groupby(key, sort=True)
    numbers = [name for name in held_out.columns if pd.api.types.is_float_dtype(held_out[name])]
    # A mean of equal numbers can differ from them in the last bit: an involvement of 0.4 must stay at its threshold.
    said = [name for name in numbers if (groups[name].nunique() > 1).any()]
    together = groups.first().drop(columns=[*said, FOLD]).join(groups[said].mean()).reset_index()
    return together[[name for name in held_out.columns if name != FOLD]]
