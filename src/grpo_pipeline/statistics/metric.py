"""The interface of metrics, for every task: rows and resampling weights in, one value per resample out."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import pandas as pd

Direction = Literal["higher", "lower", "none"]

Bounds = tuple[float, float]
"""The least and the largest value that a metric can take; an interval stays within."""

UNBOUNDED: Bounds = (-np.inf, np.inf)

SHARE: Bounds = (0.0, 1.0)

NOT_NEGATIVE: Bounds = (0.0, np.inf)


def count_rows(rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
    """Return the number of rows in each resample, [B]: what a mean over rows rests on."""
    return np.asarray(weights.sum(axis=1))


def one_side(rows: pd.DataFrame) -> np.ndarray:
    """Return 0 for every row, [n]: a value that compares no rows with others rests on all of them."""
    return np.zeros(len(rows), np.int64)


def no_more(names: Iterable[str]) -> Mapping[str, "Metric"]:
    """Return no metric: the suite knows all of them."""
    del names
    return {}


def as_it_is(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows: the metrics need no other columns."""
    return rows


def no_sentences(comparison: Mapping[str, Any]) -> list[str]:
    """Return nothing: what got better and worse is said for every task."""
    del comparison
    return []


@dataclass(frozen=True)
class Metric:
    """One number computed from prediction rows; called with weights, it returns one number per resample.

    Attributes:
        title: the name a person reads.
        better: which direction is good; "none" for a description.
        reason: the sentence that is reported when the metric is undefined.
        usable: rows -> bool [n], True where a row takes part.
        compute: (usable rows [m], weights [B, m]) -> values [B], NaN where undefined.
        size: usable rows -> the number of units (cores, patients) that the value rests on.
        mass: (usable rows, weights [B, m]) -> what a part of the rows counts [B] in the mean over parts (folds): the number of
            rows, of positives, of pairs, whatever the value is a mean over.
        bounds: the range of the value.
        sides: usable rows -> whole numbers [m], or [k, m] for k divisions: which rows are compared with which, such as positives
            with negatives. A value rests on its smallest side.
    """

    title: str
    better: Direction
    reason: str
    usable: Callable[[pd.DataFrame], np.ndarray]
    compute: Callable[[pd.DataFrame, np.ndarray], np.ndarray]
    size: Callable[[pd.DataFrame], int] = len
    mass: Callable[[pd.DataFrame, np.ndarray], np.ndarray] = count_rows
    bounds: Bounds = UNBOUNDED
    sides: Callable[[pd.DataFrame], np.ndarray] = one_side

    def __call__(self, rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
        """Return the metric of each resample, float64 [B]; weights [B, n] say how often a resample holds each row."""
        keep = self.usable(rows)
        if not keep.any():
            return np.full(len(weights), np.nan)
        return self.compute(rows[keep], weights[:, keep])

    def count(self, rows: pd.DataFrame) -> int:
        """Return the number of units that the metric reads."""
        return int(self.size(rows[self.usable(rows)]))

    def count_clusters(self, rows: pd.DataFrame, cluster: str) -> int:
        """Return the number of clusters that the metric rests on: those of its smallest side."""
        used = rows[self.usable(rows)]
        if used.empty:
            return 0
        names = used[cluster].to_numpy()
        return min(
            len(set(names[of_side == side]))
            for of_side in np.atleast_2d(self.sides(used))
            for side in np.unique(of_side)
        )


@dataclass(frozen=True)
class Unit:
    """The subject of one prediction row: an example, or one of its samples.

    Attributes:
        column: holds its id.
        noun: what a person calls it.
        facts: columns that are the same in every arm and under every rule.
    """

    column: str
    noun: str
    facts: tuple[str, ...]


@dataclass(frozen=True)
class Bar:
    """The bar of a policy that has learned from reward: four conditions, each a paired interval of its own.

    In a metric an arm's policy is above the policy that it began with, above the control, above its own choices for another
    example, and above each fixed rule. A condition whose rules are not named here does not exist for the task.

    Attributes:
        metrics: names of the metrics in which it is judged, each by itself.
        start: the rule of the policy that training began with, under what the arm has learned beside it.
        shuffled: the rule of the policy's choices for another example: do they depend on the example?
        fixed: rules that a user has without training; the best of them in a metric is named.
        ceilings: rules that know the answer, and are no competitors.
        unmoved: what is said of a policy that chooses as it did at its start.
    """

    metrics: tuple[str, ...]
    start: str = "start"
    shuffled: str = ""
    fixed: tuple[str, ...] = ()
    ceilings: tuple[str, ...] = ()
    unmoved: str = "fixed, not learned"

    def role(self, rule: str) -> str:
        """Return what a rule is beside the policy."""
        roles = {self.start: "start", self.shuffled: "exchanged"}
        roles |= dict.fromkeys(self.fixed, "fixed rule") | dict.fromkeys(self.ceilings, "ceiling")
        return roles.get(rule, "instead")


@dataclass(frozen=True)
class MetricSuite:
    """Everything the evaluation asks of a task.

    Attributes:
        unit: what a row is about.
        metrics: name -> metric, in the order of the report.
        rules: the point rules (or the like) in the order of the report; others follow by name.
        required: columns that every predictions table must have, beside the rule and the cluster.
        finite: columns that may not hold NaN.
        combine: rows of parts of a unit, such as its frames, -> one row per unit and rule; comes before everything else.
        prepare: adds columns that compare the rules of one arm (all rows in, all rows out but those of a rule that is only
            compared with).
        summary: the comparison document -> sentences in plain words, beside those that every task gets.
        discover: names of columns (or of metrics) -> the metrics that only the configuration knows, such as components of a
            reward that a user wrote; each is named like its column.
        headline: names of the metrics that a short table shows; none: all of them.
        bar: what a policy that learned from reward must beat; None where the task states none.
    """

    unit: Unit
    metrics: Mapping[str, Metric]
    rules: tuple[str, ...]
    required: tuple[str, ...] = ()
    finite: tuple[str, ...] = ()
    combine: Callable[[pd.DataFrame], pd.DataFrame] = as_it_is
    prepare: Callable[[pd.DataFrame], pd.DataFrame] = as_it_is
    summary: Callable[[Mapping[str, Any]], list[str]] = no_sentences
    discover: Callable[[Iterable[str]], Mapping[str, Metric]] = no_more
    headline: tuple[str, ...] = ()
    bar: Bar | None = None

    @property
    def judged(self) -> tuple[str, ...]:
        """The metrics in which the policy is held against each other rule: the bar's, else the first of the headline."""
        if self.bar is not None:
            return tuple(name for name in self.bar.metrics if name in self.metrics)
        known = (name for name in self.headline if name in self.metrics)
        return tuple(name for name in known if self.metrics[name].better != "none")[:1]

    def for_names(self, names: Iterable[str]) -> Self:
        """Return the suite with the metrics that these names of columns (or of metrics) ask for."""
        return replace(self, metrics={**self.metrics, **self.discover(names)})
