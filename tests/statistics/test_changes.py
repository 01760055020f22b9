"""Sentences about what got worse have the same words as those about what got better, for every metric of any task."""

from typing import Any

import numpy as np
import pytest

from grpo_pipeline.statistics.metric import Direction, Metric
from grpo_pipeline.statistics.wording import change_sentences, changes


def metric(title: str, better: Direction) -> Metric:
    return Metric(title, better, "", usable=lambda rows: np.ones(len(rows), bool), compute=lambda rows, weights: weights.mean(1))


# Of a task that no file of the project knows.
METRICS = {
    "weight": metric("Weight of the catch", "higher"),
    "bycatch": metric("Bycatch", "lower"),
    "hours": metric("Hours at sea", "none"),
    "fuel": metric("Fuel", "lower"),
}


def entry(low: float | None, high: float | None = None) -> dict[str, Any]:
    if low is None or high is None:
        return {"value": None, "ci95": None, "reason": "undefined"}
    return {"value": (low + high) / 2, "ci95": [low, high]}


def document(gain: dict[str, Any] | None = None, **differences: Any) -> dict[str, Any]:
    held = {name: entry(-1.0, 1.0) for name in METRICS} | differences
    arms = {"trawl": {}, "line": {}}
    return {
        "control": "trawl",
        "arms": arms,
        "differences": {"line": held},
        "policy_gain": {} if gain is None else {"line": gain},
    }


def said(found: dict[str, Any]) -> list[str]:
    return change_sentences(found, METRICS, chance_rule="drift")


def test_what_got_worse_stands_first_and_in_the_same_words() -> None:
    assert said(document(weight=entry(0.2, 0.4), bycatch=entry(0.1, 0.3), fuel=entry(-0.3, -0.1))) == [
        "line, worse than trawl, of 3 metrics looked at: Bycatch +0.200 (95% interval +0.100 to +0.300).",
        "line, better than trawl, of 3 metrics looked at: Weight of the catch +0.300 (95% interval +0.200 to +0.400); "
        "Fuel -0.200 (95% interval -0.300 to -0.100).",
    ]


@pytest.mark.parametrize(
    ("name", "interval", "kind"),
    [
        ("weight", (0.01, 0.2), "better"),
        ("weight", (-0.2, -0.01), "worse"),
        ("weight", (-0.2, 0.01), "same"),
        ("weight", (0.0, 0.2), "same"),
        ("bycatch", (0.01, 0.2), "worse"),
        ("bycatch", (-0.2, -0.01), "better"),
    ],
)
def test_a_change_is_one_only_where_its_interval_leaves_out_0(name: str, interval: tuple[float, float], kind: str) -> None:
    found = changes({name: entry(*interval)}, METRICS)
    assert found == {"worse": [], "better": [], "same": []} | {kind: [name]}


def test_no_good_direction_no_interval_and_no_entry_are_not_looked_at() -> None:
    assert said(document(hours=entry(3.0, 4.0), fuel=entry(None))) == [
        "line, worse than trawl, of 2 metrics looked at: none shown.",
        "line, better than trawl, of 2 metrics looked at: none shown.",
    ]
    assert changes({"unknown": entry(1.0, 2.0)}, METRICS) == {"worse": [], "better": [], "same": []}
    assert said({"control": "trawl", "arms": {"trawl": {}}, "differences": {}, "policy_gain": {}}) == []


def test_changes_against_the_start_are_said_too() -> None:
    gain = {name: entry(-1.0, 1.0) for name in METRICS} | {"bycatch": entry(0.5, 0.7)}
    assert said(document(gain))[2] == (
        "line, worse than the rule drift, of 3 metrics looked at: Bycatch +0.600 (95% interval +0.500 to +0.700)."
    )
