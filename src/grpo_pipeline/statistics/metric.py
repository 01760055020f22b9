"""Define the interface of metrics: prediction rows and resampling weights in, one value per resample out."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

Direction = Literal["higher", "lower", "none"]

Bounds = tuple[float, float]
"""The least and the largest value that a metric can take; an interval stays within."""

UNBOUNDED: Bounds = (-np.inf, np.inf)

SHARE: Bounds = (0.0, 1.0)

NOT_NEGATIVE: Bounds = (0.0, np.inf)


def count_rows(rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
    """Count the rows of each resample, [B]: the mass of a mean over rows."""
    return np.asarray(weights.sum(axis=1))


def one_side(rows: pd.DataFrame) -> np.ndarray:
    """Return 0 for every row, [n]: a metric that compares no rows with others has a single side."""
    return np.zeros(len(rows), np.int64)


def no_more(names: Iterable[str]) -> Mapping[str, "Metric"]:
    """Find no further metrics: the suite knows all of them."""
    del names
    return {}


def for_all_data(suite: "MetricSuite", names: Collection[str]) -> "MetricSuite":
    """Return the suite unchanged: it is the same for all data."""
    del names
    return suite


def as_it_is(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows unchanged: the metrics need no other columns."""
    return rows


def no_sentences(comparison: Mapping[str, Any]) -> list[str]:
    """Return no sentences: the shared sentences suffice."""
    del comparison
    return []


@dataclass(frozen=True)
class Metric:
    """A number computed from prediction rows. Called with weights, it returns a number per resample.

    Attributes:
        title: the name a person reads.
        better: which direction is good; "none" for a description.
        reason: the sentence that is reported when the metric is undefined.
        usable: rows -> bool [n], True where a row takes part.
        compute: (usable rows [m], weights [B, m]) -> values [B], NaN where undefined.
        size: usable rows -> the number of units (cores, patients) that the value rests on.
        mass: (usable rows, weights [B, m]) -> weight [B] of a fold in the mean over folds: its number of rows, positives or
            pairs, whichever the metric averages.
        bounds: the range of the value.
        sides: usable rows -> whole numbers [m], or [k, m] for k divisions. Rows with different numbers are compared, such as
            positives with negatives. A value rests on its smallest side.
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
        """Count the clusters that the metric rests on: those of its smallest side."""
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
        column: the column with its id.
        noun: the word for it in sentences.
        facts: columns that are the same in every arm and under every rule.
    """

    column: str
    noun: str
    facts: tuple[str, ...]


@dataclass(frozen=True)
class Bar:
    """The bar of a policy that has learned from reward: four conditions, each with a paired interval of its own.

    In a metric, an arm's policy must be above four others: its start, the control, its own choices for another example, and each
    fixed rule. A condition whose rules are not named here does not exist for the task.

    Attributes:
        metrics: names of the metrics in which the policy is judged, each by itself.
        start: the rule of the initial policy, evaluated with the other models that the arm has learned.
        shuffled: the rule of the policy's choices for another example: do they depend on the example?
        fixed: rules that need no training; the best of them in a metric is named.
        ceilings: rules that know the answer, and are no competitors.
        unmoved: the sentence about a policy that chooses as it did at its start.
    """

    metrics: tuple[str, ...]
    start: str = "start"
    shuffled: str = ""
    fixed: tuple[str, ...] = ()
    ceilings: tuple[str, ...] = ()
    unmoved: str = "fixed, not learned"

    def role(self, rule: str) -> str:
        """Name the role of a rule beside the policy, such as "start" or "ceiling"."""
        roles = {self.start: "start", self.shuffled: "exchanged"}
        roles |= dict.fromkeys(self.fixed, "fixed rule") | dict.fromkeys(self.ceilings, "ceiling")
        return roles.get(rule, "instead")


@dataclass(frozen=True)
class MetricSuite:
    """The metrics of a task, and the words and columns that the evaluation needs.

    Attributes:
        unit: the subject of a row.
        metrics: name -> metric, in the order of the report.
        rules: the rules in the order of the report; others follow by name.
        required: columns that every predictions table must have, beside the rule and the cluster.
        finite: columns that may not hold NaN.
        combine: rows of parts of a unit, such as its frames -> a row per unit and rule; runs before everything else.
        prepare: adds columns that compare the rules of an arm. It returns all rows, except those of a rule that serves only for
            comparison.
        summary: the comparison document -> sentences of the task, beside those that every task gets.
        discover: names of columns or metrics -> metrics that only the configuration knows, such as components of a user's reward.
            Each is named like its column.
        adapt: the suite and the names given to ``discover`` -> the suite for what these data measure, such as another headline.
        headline: names of the metrics of a short table; empty: all metrics.
        bar: the conditions of learning from reward; None where the task states none.
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
    adapt: Callable[["MetricSuite", Collection[str]], "MetricSuite"] = for_all_data
    headline: tuple[str, ...] = ()
    bar: Bar | None = None

    @property
    def judged(self) -> tuple[str, ...]:
        """List the metrics in which the policy is compared with each rule: the bar's, else the first of the headline."""
        if self.bar is not None:
            return tuple(name for name in self.bar.metrics if name in self.metrics)
        known = (name for name in self.headline if name in self.metrics)
        return tuple(name for name in known if self.metrics[name].better != "none")[:1]

    def for_names(self, names: Iterable[str]) -> "MetricSuite":
        """Add the metrics that these columns (or names of metrics) ask for, and adapt the suite to them."""
        given = tuple(names)
        known = replace(self, metrics={**self.metrics, **self.discover(given)})
        return self.adapt(known, given)
