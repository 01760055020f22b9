"""Finished cells -> estimates of every arm, seed, rule and metric, all on the same resamples of patients."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from grpo_pipeline.pipelines.compare.cells import Cell, CompareError, Plan, StoredCells
from grpo_pipeline.pipelines.evaluation.alignment import Rules, check_same_units, split_rules
from grpo_pipeline.pipelines.evaluation.bootstrap import Estimate, cluster_weights
from grpo_pipeline.pipelines.evaluation.comparison import estimate
from grpo_pipeline.pipelines.evaluation.params import EvaluationParams
from grpo_pipeline.tasks.metric import MetricSuite

# rule -> metric -> seed -> estimate
ArmScores = dict[str, dict[str, dict[int, Estimate]]]


@dataclass(frozen=True)
class Scores:
    """The scores that the table of a comparison is made from.

    Attributes:
        arms: arm -> rule -> metric -> seed -> estimate; an arm without a finished cell is absent.
        cores: the rows that were resampled, of one cell and rule: their number and clusters are those of all.
    """

    arms: Mapping[str, ArmScores]
    cores: pd.DataFrame


def usable(plan: Plan, cells: StoredCells) -> list[Cell]:
    """Return the cells of the plan that are finished, and were trained with the parameters of the plan."""
    return [cell for cell in plan.cells if why_missing(plan, cell, cells) is None]


def why_missing(plan: Plan, cell: Cell, cells: StoredCells) -> str | None:
    """Return why a cell does not take part, or None."""
    header = cells.headers.get(cell.key)
    if header is None:
        return "not trained"
    if header.status == "failed":
        return header.reason or "failed"
    return None if header.parameters == plan.arms[cell.arm].parameters else "trained with other parameters; run compare again"


def score_cells(plan: Plan, cells: StoredCells, params: EvaluationParams, suite: MetricSuite, *, rules: "RuleMetrics") -> Scores:
    """Score every usable cell.

    Args:
        plan: arms and cells.
        cells: what is stored.
        params: cluster, resamples and seed.
        suite: the task's metrics.
        rules: which rules and metrics of an arm are scored.

    Raises:
        CompareError: if no cell of the control is usable.
        ValueError: if two cells do not hold the same cores.
    """
    cores = control_cores(plan, cells, params, suite)
    weights = cluster_weights(cores[params.cluster], resamples=params.resamples, seed=params.seed)
    arms: dict[str, ArmScores] = {}
    for cell in usable(plan, cells):
        tables = aligned(cell, plan, cells, suite, cluster=params.cluster)
        for rule, names in rules.of(plan.arms[cell.arm].description.rule, tables).items():
            check_same_units(tables[rule], cores, who=f"{cell.key} / {rule}", unit=suite.unit, cluster=params.cluster)
            scores = arms.setdefault(cell.arm, {}).setdefault(rule, {})
            for name in names:
                scores.setdefault(name, {})[cell.seed] = estimate(suite.metrics[name], tables[rule], weights)
    return Scores({arm: arms[arm] for arm in plan.arms if arm in arms}, cores)


def control_cores(plan: Plan, cells: StoredCells, params: EvaluationParams, suite: MetricSuite) -> pd.DataFrame:
    """Return the rows of the control's first usable cell; those of all other cells must hold the same cores.

    Raises:
        CompareError: if the control has no usable cell.
    """
    control = next(iter(plan.arms))
    first = next((cell for cell in usable(plan, cells) if cell.arm == control), None)
    if first is None:
        lost = next(cell for cell in plan.cells if cell.arm == control)
        reason = why_missing(plan, lost, cells)
        raise CompareError(f"the control {control} must have a finished cell, got none ({lost.key}: {reason}); train it first")
    return aligned(first, plan, cells, suite, cluster=params.cluster)[plan.arms[control].description.rule]


@dataclass(frozen=True)
class RuleMetrics:
    """All metrics of an arm's own rule, and the primary ones of the other rules that are shown."""

    metrics: Collection[str]
    primary: Collection[str]
    baselines: Iterable[str]

    def of(self, headline: str, tables: Rules) -> dict[str, list[str]]:
        """Return rule -> metrics."""
        others = {rule: list(self.primary) for rule in self.baselines if rule in tables and rule != headline}
        return {headline: list(self.metrics)} | others


def aligned(cell: Cell, plan: Plan, cells: StoredCells, suite: MetricSuite, *, cluster: str) -> Rules:
    """Return a cell's prediction rows by rule, in the order of the core ids.

    Raises:
        ValueError: if the rows lack a column, repeat a core, or do not hold the arm's rule.
    """
    rules = split_rules(cells.predictions(cell.key), suite, arm=cell.key, cluster=cluster)
    rule = plan.arms[cell.arm].description.rule
    if rule not in rules:
        raise ValueError(f"predictions of {cell.key} must hold the rule {rule!r}, got {sorted(rules)}; correct the arm's rule")
    return rules
