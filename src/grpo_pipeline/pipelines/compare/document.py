"""Estimates of all arms -> the document ``<task>.compare.result`` (docs/compare.md)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from grpo_pipeline.pipelines.compare.cells import Plan, StoredCells
from grpo_pipeline.pipelines.compare.params import CompareParams
from grpo_pipeline.pipelines.compare.scores import RuleMetrics, Scores, score_cells, usable, why_missing
from grpo_pipeline.pipelines.compare.seeds import BySeed, differences_by_seed, interval_with_seeds, mean_over_seeds, spread
from grpo_pipeline.pipelines.compare.verdict import verdict
from grpo_pipeline.pipelines.evaluation.bootstrap import LEVEL, Estimate, describe
from grpo_pipeline.pipelines.evaluation.multiplicity import holm, simultaneous_intervals, two_sided_p
from grpo_pipeline.pipelines.evaluation.params import EvaluationParams
from grpo_pipeline.tasks.metric import MetricSuite

Pair = tuple[str, str]  # arm, metric
ALPHA = 1 - LEVEL


class Writer:
    """Turns estimates into entries: what every entry of one document shares."""

    def __init__(self, evaluation: EvaluationParams, *, clusters: int) -> None:
        self._evaluation, self._clusters = evaluation, clusters

    @property
    def resamples(self) -> int:
        """Number of resamples behind each interval."""
        return self._evaluation.resamples

    def entry(self, by_seed: BySeed) -> dict[str, Any]:
        """Return the mean over the seeds, its intervals without and with the luck of training, and the spread of the seeds."""
        mean = mean_over_seeds(by_seed, resamples=self.resamples)
        described = self.describe(mean)
        with_seeds = interval_with_seeds(by_seed, mean, clusters=self._clusters) if described["ci95"] else None
        return described | {"ci95_with_seeds": with_seeds, "seeds": spread(by_seed)}

    def describe(self, estimate: Estimate) -> dict[str, Any]:
        """Return value, interval and n, or the reason why there is none."""
        return describe(estimate, clusters=self._clusters, max_undefined=self._evaluation.max_undefined)


def compare_cells(
    plan: Plan, cells: StoredCells, params: CompareParams, evaluation: EvaluationParams, *, suite: MetricSuite
) -> dict[str, Any]:
    """Score the finished cells, average over the seeds, take paired differences and correct their p-values.

    Args:
        plan: arms and cells, the control first.
        cells: what is stored.
        params: control, primary metrics, rules of the second table.
        evaluation: cluster, resamples and seed.
        suite: the task's metrics.

    Raises:
        CompareError: if no cell of the control is finished.
    """
    measured = (name for cell in usable(plan, cells) for name in cells.headers[cell.key].metrics)
    suite = suite.for_names(dict.fromkeys(measured))
    shown = RuleMetrics(list(suite.metrics), params.primary_metrics, params.baseline_rules)
    scores = score_cells(plan, cells, evaluation, suite, rules=shown)
    clusters = int(scores.cores[evaluation.cluster].nunique())
    writer = Writer(evaluation, clusters=clusters)
    differences, correction = compare_with_control(plan, scores, params.primary_metrics, writer)
    document = {
        "task": plan.task,
        "control": params.control,
        "split": evaluation.split,
        "n": {"examples": len(scores.cores), "clusters": clusters, "cluster": evaluation.cluster},
        "seeds": list(params.seeds),
        "primary_metrics": list(params.primary_metrics),
        "interval": {"method": "percentile bootstrap of whole clusters", "level": LEVEL, "resamples": evaluation.resamples},
        "correction": correction,
        "arms": {arm: arm_section(plan, scores, arm, writer) for arm in scores.arms},
        "differences": differences,
        "baselines": baseline_section(plan, scores, writer),
        "cells": {cell.key: cell_section(plan, cells, cell.key) for cell in plan.cells},
    }
    return document | {"verdict": verdict(document, suite.metrics, chance_rule=evaluation.chance_rule)}


def arm_section(plan: Plan, scores: Scores, arm: str, writer: Writer) -> dict[str, Any]:
    """Return an arm's description and the metrics of its own rule."""
    described = plan.arms[arm].description
    headline = scores.arms[arm][described.rule]
    return described.model_dump(mode="json") | {"metrics": {name: writer.entry(by_seed) for name, by_seed in headline.items()}}


def compare_with_control(
    plan: Plan, scores: Scores, primary: tuple[str, ...], writer: Writer
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
    entries = {pair: {key: value for key, value in writer.entry(gap).items() if key != "n"} for pair, gap in gaps.items()}
    family = {
        pair: mean_over_seeds(gap, resamples=writer.resamples)
        for pair, gap in gaps.items()
        if pair[1] in primary and entries[pair]["ci95"] is not None
    }
    p_values = {pair: two_sided_p(one.resamples) for pair, one in family.items()}
    adjusted, together = holm(p_values), simultaneous_intervals(family)
    for pair in family:
        bounds = list(together.intervals[pair])
        entries[pair] |= {"p": p_values[pair], "p_holm": adjusted[pair], "ci95_simultaneous": bounds}
    found = {arm: {name: entries[arm, name] for name in headline} for arm, headline in headlines.items() if arm != control}
    return found, describe_correction(len(family), together.critical, resamples=writer.resamples)


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
    if comparisons * smallest > ALPHA:
        enough = int(np.ceil(2 * comparisons / ALPHA))
        described["note"] = (
            f"with {resamples} resamples no corrected p-value of {comparisons} comparisons can fall below {ALPHA:.2f}; "
            f"set evaluation.resamples to at least {enough}"
        )
    return described


def baseline_section(plan: Plan, scores: Scores, writer: Writer) -> dict[str, dict[str, Any]]:
    """Return arm -> rule -> the primary metrics of other points with that arm's decoder."""
    return {
        arm: {
            rule: {"metrics": {name: writer.entry(by_seed) for name, by_seed in found.items()}}
            for rule, found in rules.items()
            if rule != plan.arms[arm].description.rule
        }
        for arm, rules in scores.arms.items()
    }


def cell_section(plan: Plan, cells: StoredCells, key: str) -> Mapping[str, Any]:
    """Return how a cell ended, and why it does not take part."""
    cell = next(cell for cell in plan.cells if cell.key == key)
    reason, header = why_missing(plan, cell, cells), cells.headers.get(key)
    status = "missing" if header is None else header.status
    return {"status": status, "seconds": None if header is None else header.seconds, "reason": reason}
