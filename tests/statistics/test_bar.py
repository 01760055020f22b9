"""Whether an arm has learned from reward: each condition of the bar alone decides, in every direction, for any task."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from grpo_pipeline.statistics.bar import bar_sentences, has_moved, judge_bar
from grpo_pipeline.statistics.metric import Bar, Metric

METRIC = Metric(
    "Title", "higher", "", usable=lambda rows: np.ones(len(rows), bool), compute=lambda rows, weights: weights.mean(1)
)
BAR = Bar(
    metrics=("m",), start="begun", shuffled="swapped", fixed=("middle", "blobs", "absent"), ceilings=("oracle",),
    unmoved="as it was",
)  # fmt: skip
UP, AT, DOWN, NONE = (0.1, 0.3), (0.0, 0.2), (-0.3, -0.1), None
# own - begun, own - control, own - swapped, own - middle, own - blobs (the best) -> the fixed rule that decides, verdict
BARS: list[Any] = [
    (UP, UP, UP, UP, UP, "blobs", "met"),
    (AT, UP, UP, UP, UP, "blobs", "not shown"),
    (UP, AT, UP, UP, UP, "blobs", "not shown"),
    (UP, UP, AT, UP, UP, "blobs", "not shown"),
    (UP, UP, UP, AT, UP, "middle", "not shown"),
    (UP, UP, UP, UP, AT, "blobs", "not shown"),
    (UP, UP, UP, AT, AT, "blobs", "not shown"),
    (DOWN, UP, UP, UP, UP, "blobs", "missed"),
    (UP, DOWN, UP, UP, UP, "blobs", "missed"),
    (UP, UP, DOWN, UP, UP, "blobs", "missed"),
    (UP, UP, UP, DOWN, AT, "middle", "missed"),
    (NONE, UP, UP, UP, UP, "blobs", "no statement"),
    (UP, NONE, UP, UP, UP, "blobs", "no statement"),
    (UP, UP, NONE, UP, UP, "blobs", "no statement"),
    (UP, UP, UP, NONE, UP, "middle", "no statement"),
    (NONE, UP, UP, UP, DOWN, "blobs", "missed"),
]
RULES = ("begun", "swapped", "middle", "blobs", "oracle")


def entry(gap: tuple[float, float] | None, sign: int = 1) -> dict[str, Any]:
    if gap is None:
        return {"value": None, "ci95": None, "reason": "undefined"}
    return {"value": sign * sum(gap) / 2, "ci95": sorted(sign * end for end in gap)}


def judged(gaps: list[Any], of_control: list[Any], *, direction: Any = "higher", bar: Bar = BAR, **changes: Any) -> Any:
    """Judge the arm ``line`` by its gaps to begun, the control ``trawl``, swapped, middle and blobs."""
    sign = 1 if direction == "higher" else -1
    values = {"begun": 0.1, "swapped": 9.0, "middle": 0.5 * sign, "blobs": 0.6 * sign, "oracle": 10.0 * sign}
    start, control, *others = gaps
    named = {"line": [start, *others, DOWN], "trawl": [*of_control, DOWN]}
    return judge_bar(
        {arm: {rule: {"m": entry(gap, sign)} for rule, gap in zip(RULES, found, strict=True)} for arm, found in named.items()},
        {arm: {rule: {"m": value} for rule, value in values.items()} for arm in named},
        bar,
        {"m": replace(METRIC, better=direction)},
        **{"control": "trawl", "differences": {"line": {"m": entry(control, sign)}}} | changes,
    )


def said(bars: Any, *, direction: Any = "higher", bar: Bar = BAR, **sections: Any) -> list[str]:
    document = {"arms": {"trawl": {}, "line": {}}, "control": "trawl", "bar": bars} | sections
    return bar_sentences(document, bar, {"m": replace(METRIC, better=direction)})


@pytest.mark.parametrize("direction", ["higher", "lower"])
@pytest.mark.parametrize("case", BARS, ids=range(len(BARS)))
def test_the_bar_is_met_where_all_four_conditions_are(case: Any, direction: Any) -> None:
    *gaps, hardest, verdict = case
    found = judged(gaps, [AT, UP, UP, UP], direction=direction)
    assert found["line"]["m"]["verdict"] == verdict
    than = {kind: condition["than"] for kind, condition in found["line"]["m"]["conditions"].items()}
    assert than == {"start": "begun", "control": "trawl", "shuffled": "swapped", "fixed": hardest}
    [sentence] = said(found, direction=direction)
    answer = {"met": "Yes", "missed": "No"}.get(verdict, verdict.capitalize())
    side = "above" if direction == "higher" else "below"
    assert sentence.startswith(f"line: did learning from reward work, by Title? {answer}. Each must lie {side} 0: own − begun")
    assert "no success" not in sentence
    assert ("own − begun: no statement" in sentence) == (gaps[0] is None)


def test_each_arm_is_judged_by_its_own_difference_to_the_control() -> None:
    gaps = {"begun": {"m": entry(UP)}}
    found = judge_bar(
        dict.fromkeys(("trawl", "line", "net"), gaps), {}, Bar(metrics=("m",), start="begun"), {"m": METRIC},
        control="trawl", differences={"line": {"m": entry(DOWN)}, "net": {"m": entry(UP)}},
    )  # fmt: skip
    assert {arm: of_metrics["m"]["verdict"] for arm, of_metrics in found.items()} == {
        "trawl": "met", "line": "missed", "net": "met",
    }  # fmt: skip


def test_each_metric_is_met_by_the_control_or_not() -> None:
    metrics, up = {"m": METRIC, "k": METRIC}, {"m": entry(UP), "k": entry(UP)}
    bar = Bar(metrics=("m", "k"), start="begun")
    gaps = {"trawl": {"begun": up | {"k": entry(AT)}}, "line": {"begun": up}}
    found = judge_bar(gaps, {}, bar, metrics, control="trawl", differences={"line": up})
    met = {arm: {name: one["control_meets"] for name, one in of_metrics.items()} for arm, of_metrics in found.items()}
    assert met == {"trawl": {"m": True, "k": False}, "line": {"m": True, "k": False}}


def test_the_hardest_fixed_rule_is_that_of_the_arm_itself() -> None:
    """Both rules are beaten by both arms; which of them has the higher value differs."""
    gaps, bar = {rule: {"m": entry(UP)} for rule in ("begun", "middle", "blobs")}, replace(BAR, shuffled="")
    values = {
        "trawl": {"middle": {"m": 0.9}, "blobs": {"m": 0.2}},
        "line": {"middle": {"m": 0.3}, "blobs": {"m": 0.6}},
    }
    found = judge_bar(
        dict.fromkeys(values, gaps), values, bar, {"m": METRIC}, control="trawl", differences={"line": {"m": entry(UP)}}
    )
    assert {arm: of_metrics["m"]["conditions"]["fixed"]["than"] for arm, of_metrics in found.items()} == {
        "trawl": "middle", "line": "blobs",
    }  # fmt: skip


def test_a_fixed_rule_without_a_value_is_not_the_hardest() -> None:
    metrics, bar = {"m": replace(METRIC, better="lower")}, replace(BAR, start="middle", shuffled="")
    gaps = {"middle": {"m": entry(UP, -1)}, "blobs": {"m": entry(AT, -1)}}
    for unknown, hardest in (("blobs", "middle"), ("middle", "blobs"), (None, "blobs")):
        values = {rule: {"m": None if rule == unknown else 0.5} for rule in gaps}
        found = judge_bar({"trawl": gaps}, {"trawl": values}, bar, metrics, control="trawl", differences={})
        assert found["trawl"]["m"]["conditions"]["fixed"]["than"] == hardest
    nothing = {rule: {"m": None} for rule in gaps}
    found = judge_bar({"trawl": gaps}, {"trawl": nothing}, bar, metrics, control="trawl", differences={})
    assert found["trawl"]["m"]["verdict"] == "no statement"


def test_a_condition_that_the_task_does_not_have_decides_nothing() -> None:
    bar = Bar(metrics=("m",), start="begun")
    found = judged([UP, UP, DOWN, DOWN, DOWN], [AT, UP, UP, UP], bar=bar)
    assert found["line"]["m"]["verdict"] == "met"
    assert list(found["line"]["m"]["conditions"]) == ["start", "control"]
    # A start that no row is of is no condition that is met.
    missing = judged([UP, UP, UP, UP, UP], [AT, UP, UP, UP], bar=replace(BAR, start="elsewhere"))
    assert missing["line"]["m"]["verdict"] == "no statement"


@pytest.mark.parametrize(
    ("gaps", "of_control", "ending"),
    [
        ([UP, AT, UP, UP, UP], [UP, UP, UP, UP], "trawl is above all the others as well: this is no success of the reward."),
        ([UP, UP, UP, UP, UP], [UP, UP, UP, UP], "trawl is above all the others as well: what reward adds is own − trawl."),
        ([UP, AT, UP, UP, UP], [AT, UP, UP, UP], "own − blobs +0.200 (95% interval +0.100 to +0.300)."),
        ([UP, AT, UP, AT, UP], [UP, UP, UP, UP], "own − middle +0.100 (95% interval +0.000 to +0.200)."),
    ],
    ids=["control meets it, too", "above the control, too", "control has not moved", "neither"],
)
def test_what_the_control_meets_as_well_is_no_success(gaps: Any, of_control: Any, ending: str) -> None:
    found = judged(gaps, of_control)
    assert found["line"]["m"]["control_meets"] == (of_control == [UP] * 4)
    [sentence] = said(found)
    assert sentence.endswith(ending)


def test_an_arm_that_was_trained_longer_is_not_shown_to_be_better_than_its_control() -> None:
    found = judged([UP, UP, UP, UP, UP], [AT, UP, UP, UP], longer=["line"])
    assert found["line"]["m"]["verdict"] == "not shown"
    [sentence] = said(found)
    assert "? Not shown." in sentence
    assert sentence.endswith("line was trained for more steps than trawl: own − trawl shows nothing.")
    # What is worse in spite of more steps is worse.
    assert judged([UP, DOWN, UP, UP, UP], [AT, UP, UP, UP], longer=["line"])["line"]["m"]["verdict"] == "missed"


def test_of_a_policy_that_has_not_moved_nothing_else_is_said() -> None:
    found = judged([UP, UP, UP, UP, UP], [UP, UP, UP, UP])
    assert said(found, moved={"line": False}) == ["line: its policy chooses as it did at its start: as it was."]
    assert said(found, training={"line": {"learns_from_reward": False}}) == ["line: learns nothing from reward."]
    assert "? Yes." in said(found, moved={"line": True}, training={"line": {"learns_from_reward": True}})[0]
    assert said(judged([NONE] * 5, [NONE] * 4)) == []
    assert bar_sentences({}, None, {}) == []


def test_without_a_control_there_is_no_yes() -> None:
    found = judged([UP, UP, UP, UP, UP], [UP, UP, UP, UP], has_control=False)
    assert found["trawl"]["m"]["verdict"] == "no statement"
    told = said(found, not_run="supervised")
    assert [sentence.partition(":")[0] for sentence in told] == ["trawl", "line"]
    assert "? No statement. " in told[0]
    assert "no control was trained" in told[0]


ROWS = pd.DataFrame({"rule": "policy", "id": ["a", "b"], "prob": [0.25, 0.5], "reply": ["x", "y"], "shift": [np.nan, 1.0]})


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({}, False),
        ({"prob": [0.25, 0.5 + 1e-9]}, False),  # rounding
        ({"prob": [0.25, 0.51]}, True),
        ({"reply": ["x", "z"]}, True),
        ({"shift": [np.nan, np.nan]}, False),  # what one of them lacks
        ({"shift": [7.0, 1.0]}, False),
        ({"shift": [np.nan, 2.0]}, True),
    ],
)
def test_a_policy_has_moved_where_any_choice_differs(change: Any, moved: bool) -> None:
    assert has_moved(ROWS, ROWS.assign(rule="start", **change)) == moved
