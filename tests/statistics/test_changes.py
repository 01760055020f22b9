"""Sentences about what got worse have the same words as those about what got better, for every metric of any task."""

from typing import Any

import numpy as np
import pytest

from grpo_pipeline.statistics.baseline_verdicts import baseline_sentences, verdicts
from grpo_pipeline.statistics.changes import change_sentences, changes
from grpo_pipeline.statistics.metric import Bar, Metric
from grpo_pipeline.statistics.wording import judge, side_of, signed, tone_of

# Of a task that no file of the project knows.
METRICS = {
    name: Metric(title, better, "", usable=lambda rows: np.ones(len(rows), bool), compute=lambda rows, weights: weights.mean(1))
    for name, title, better in [
        ("weight", "Weight of the catch", "higher"), ("bycatch", "Bycatch", "lower"), ("hours", "Hours at sea", "none"),
        ("fuel", "Fuel", "lower"),
    ]
}  # fmt: skip


def entry(low: float | None, high: float | None = None) -> dict[str, Any]:
    if low is None or high is None:
        return {"value": None, "ci95": None, "reason": "undefined"}
    return {"value": (low + high) / 2, "ci95": [low, high]}


def said(gain: dict[str, Any] | None = None, **differences: Any) -> list[str]:
    held = {name: entry(-1.0, 1.0) for name in METRICS}
    found = {"control": "trawl", "arms": {"trawl": {}, "line": {}}, "differences": {"line": held | differences}}
    return change_sentences(found | {"policy_gain": {} if gain is None else {"line": held | gain}}, METRICS, chance_rule="drift")


def test_what_got_worse_stands_first_and_in_the_same_words() -> None:
    assert said(weight=entry(0.2, 0.4), bycatch=entry(0.1, 0.3), fuel=entry(-0.3, -0.1)) == [
        "line, worse than trawl, of 3 metrics looked at: Bycatch +0.200 (95% interval +0.100 to +0.300).",
        "line, better than trawl, of 3 metrics looked at: Weight of the catch +0.300 (95% interval +0.200 to +0.400); "
        "Fuel -0.200 (95% interval -0.300 to -0.100).",
    ]
    assert said({"bycatch": entry(0.5, 0.7)})[2] == (
        "line, worse than the rule drift, of 3 metrics looked at: Bycatch +0.600 (95% interval +0.500 to +0.700)."
    )
    # No good direction, no interval and no entry are not looked at.
    assert said(hours=entry(3.0, 4.0), fuel=entry(None)) == [
        "line, worse than trawl, of 2 metrics looked at: none shown.",
        "line, better than trawl, of 2 metrics looked at: none shown.",
    ]
    nothing = {"control": "trawl", "arms": {"trawl": {}}, "differences": {}, "policy_gain": {}}
    assert change_sentences(nothing, METRICS, chance_rule="drift") == []


@pytest.mark.parametrize(
    ("name", "interval", "kind"),
    [
        ("weight", (0.01, 0.2), "better"), ("weight", (-0.2, -0.01), "worse"), ("weight", (-0.2, 0.01), "same"),
        ("weight", (0.0, 0.2), "same"), ("bycatch", (0.01, 0.2), "worse"), ("bycatch", (-0.2, -0.01), "better"),
    ],
)  # fmt: skip
def test_a_change_is_one_only_where_its_interval_leaves_out_0(name: str, interval: tuple[float, float], kind: str) -> None:
    found = changes({name: entry(*interval), "unknown": entry(1.0, 2.0)}, METRICS)
    assert found == {"worse": [], "better": [], "same": []} | {kind: [name]}


def test_the_interval_decides_and_a_difference_has_its_sign() -> None:
    words = {"above": "better", "below": "worse"}
    for interval, said_of_it in {(0.1, 0.2): "better", (-0.2, -0.1): "worse", (-0.1, 0.2): "no difference shown"}.items():
        assert judge({"ci95": list(interval)}, **words) == said_of_it
    assert judge({"ci95": [0.9, 1.2]}, **words, neutral=1.0) == "no difference shown"
    assert signed({"value": 0.0123, "ci95": [-0.02, 0.041]}) == "+0.012 (95% interval -0.020 to +0.041)"


@pytest.mark.parametrize(
    ("interval", "corrected", "side"),
    [
        ((0.1, 0.3), None, 1), ((0.1, 0.3), 0.0499, 1), ((0.1, 0.3), 0.05, 0), ((-0.3, -0.1), 0.0, -1), ((-0.3, -0.1), 0.2, 0),
        ((0.4, 0.6), 0.0499, 1), (None, 0.0, None),
    ],
)  # fmt: skip
def test_a_corrected_p_value_of_exactly_5_percent_shows_no_difference(interval: Any, corrected: Any, side: Any) -> None:
    found = {"ci95": interval and list(interval)} | ({} if corrected is None else {"p_holm": corrected})
    assert side_of(found) == side
    assert side_of(None) is None
    # An end of None is infinite: a ratio to nothing at all.
    ends = {(None, None): 1, (2.0, None): 1, (0.5, None): 0, (0.2, 0.5): -1}
    assert {interval: side_of({"ci95": list(interval)}, neutral=1.0) for interval in ends} == ends


@pytest.mark.parametrize(
    ("interval", "higher", "lower"),
    [
        ((0.9, 1.2), "same", "same"),
        ((1.1, 1.2), "better", "worse"),
        ((0.2, 0.9), "worse", "better"),
        ((1.0, 2.0), "same", "same"),
    ],
)
def test_the_tone_is_that_of_the_side_of_the_neutral_value(interval: Any, higher: str, lower: str) -> None:
    assert tone_of({"ci95": list(interval)}, "higher", neutral=1.0) == higher
    assert tone_of({"ci95": list(interval)}, "lower", neutral=1.0) == lower
    assert tone_of({"ci95": list(interval)}, "none", neutral=1.0) == ""


def test_each_metric_that_is_judged_has_a_verdict_of_its_own() -> None:
    gaps = {"drift": {"weight": entry(0.1, 0.3), "fuel": entry(0.1, 0.3), "bycatch": entry(-0.1, 0.1), "hours": entry(1.0, 2.0)}}
    assert verdicts(gaps, METRICS, ["fuel", "weight", "bycatch", "hours"]) == {
        "drift": {"fuel": "worse", "weight": "better", "bycatch": "no difference shown", "hours": "no statement"}
    }


def test_what_one_would_try_instead_is_named_by_its_verdict_and_a_ceiling_is_not() -> None:
    bar = Bar(metrics=("weight",), fixed=("middle", "blobs"), ceilings=("oracle",))
    gaps = {"middle": entry(0.1, 0.3), "blobs": entry(-0.3, -0.1), "drift": entry(-0.1, 0.1), "oracle": entry(-0.2, -0.1)}
    of_rules = {rule: {"weight": gap} for rule, gap in (gaps | {"none": entry(None)}).items()}
    found = verdicts(of_rules, METRICS, bar.metrics)
    assert baseline_sentences({"baseline_arm": "line", "verdicts": found}, METRICS, bar.metrics, bar) == [
        "line, its own policy beside what one would try instead, by Weight of the catch: better than middle; not shown to differ "
        "from drift; worse than blobs."
    ]
