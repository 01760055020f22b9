"""Check what a metric and a suite of them say of a task's rows."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from grpo_pipeline.statistics.mean_metric import mean_metric
from grpo_pipeline.statistics.metric import Bar, Metric, MetricSuite, Unit
from grpo_pipeline.statistics.unscored_rewards import unscored_columns

METRICS: dict[str, Metric] = {
    name: mean_metric(name, title=name, better=better, reason="")
    for name, better in (("size", "none"), ("fuel", "lower"), ("catch", "higher"))
}


@pytest.mark.parametrize(
    ("headline", "bar", "wanted"),
    [
        (("size", "fuel", "catch"), None, ("fuel",)),  # the first that has a better side
        (("absent", "size"), None, ()),
        ((), None, ()),
        (("fuel",), Bar(metrics=("catch", "absent", "size")), ("catch", "size")),
    ],
)
def test_a_policy_is_judged_by_what_has_a_better_side(headline: Any, bar: Any, wanted: Any) -> None:
    suite = MetricSuite(unit=Unit("trip", "trip", ()), metrics=METRICS, rules=("own",), headline=headline, bar=bar)
    assert suite.judged == wanted


def test_samples_that_were_not_asked_for_are_not_unscored() -> None:
    asked = np.array([[True, True, False], [True, False, False]])
    parts = {"fresh": np.array([[0.5, np.nan, np.nan], [np.nan, np.nan, 1.0]]), "heavy": np.ones((2, 3))}
    found = {name: column.tolist() for name, column in unscored_columns(parts, asked).items()}
    assert found == {"asked_fresh": [2, 1], "asked_heavy": [2, 1], "unscored_fresh": [1, 1], "unscored_heavy": [0, 0]}


def test_a_mean_is_over_the_rows_that_have_a_number() -> None:
    rows = pd.DataFrame({"fuel": [1.0, np.nan, 4.0, np.inf]})
    # (2 * 1 + 1 * 4) / 3; nothing but rows without a number; no such column.
    weights = np.array([[2.0, 9.0, 1.0, 5.0], [0.0, 1.0, 0.0, 1.0]])
    np.testing.assert_array_equal(METRICS["fuel"](rows, weights), [2.0, np.nan])
    assert METRICS["fuel"].count(rows) == 2
    assert np.isnan(METRICS["catch"](rows, weights)).all()


def test_what_the_rows_name_is_added_and_stands_before_what_was_known() -> None:
    fresh = mean_metric("fuel", title="Fuel of these rows", better="lower", reason="")
    asked: list[Any] = []
    suite = MetricSuite(
        unit=Unit("trip", "trip", ()), metrics=METRICS, rules=("own",),
        discover=lambda names: asked.append([*names]) or {"fuel": fresh, "crew": fresh},
    )  # fmt: skip
    found = suite.for_names(["fuel", "crew"])
    assert asked == [["fuel", "crew"]]
    assert found.metrics == {"size": METRICS["size"], "fuel": fresh, "catch": METRICS["catch"], "crew": fresh}
    assert suite.metrics == METRICS
