"""The answer of a comparison: what each verdict asks for, worked out by hand on documents of a few numbers."""

from dataclasses import replace
from typing import Any

import pytest

from grpo_pipeline.statistics.answer import Answer
from grpo_pipeline.statistics.answer_reading import read_answer, read_grid_answer
from grpo_pipeline.statistics.mean_metric import mean_metric
from grpo_pipeline.statistics.metric import Bar, MetricSuite, Unit


def entry(value: float | None, low: float | None = None, high: float | None = None, **more: Any) -> dict[str, Any]:
    return {"value": value, "ci95": None if low is None else [low, high], **more}


SUITE = MetricSuite(
    unit=Unit("row_id", noun="row", facts=()),
    metrics={
        name: mean_metric(name, title=name.capitalize(), better=better, reason="no rows")
        for name, better in (("hits", "higher"), ("error", "lower"), ("length", "none"))
    },
    rules=("policy", "start", "guess", "known"),
    headline=("error", "hits"),
    bar=Bar(metrics=("hits",), fixed=("guess",), ceilings=("known",)),
)
COST = {"steps": 7, "samples": 70, "reward_calls": None}
GAPS = {"hits": entry(0.25, 0.125, 0.375), "error": entry(-0.5, -0.75, -0.25), "length": entry(1.0, 0.5, 1.5)}


def condition(verdict: str, than: str, value: float = 0.25) -> dict[str, Any]:
    return {"than": than, "verdict": verdict, **entry(value, value - 0.125, value + 0.125)}


def document(**changes: Any) -> dict[str, Any]:
    values = {"control": {"hits": entry(0.5), "error": entry(1.0), "length": entry(3.0)}}
    values["mine"] = {"hits": entry(0.75), "error": entry(0.5), "length": entry(4.0)}
    values["third"] = {"hits": entry(0.625), "error": entry(0.5), "length": entry(4.0)}
    better = {"start": "better", "control": "better", "fixed": "better"}
    told = {
        kind: condition(one, {"start": "start", "control": "control", "fixed": "guess"}[kind]) for kind, one in better.items()
    }
    baselines = {"start": {"hits": entry(0.375)}, "guess": {"hits": entry(0.25)}, "known": {"hits": entry(1.0)}}
    return {
        "task": "letters", "control": "control", "baseline_arm": "mine", "split": "val", "seed": 3, "commit": "0123abc",
        "run": "r",
        "n": {"examples": 40, "clusters": 20, "cluster": "writer_id"},
        "interval": {"not_covered": "the luck of a seed"},
        "arms": {arm: {"metrics": metrics} for arm, metrics in values.items()},
        "baselines": {rule: {"metrics": metrics} for rule, metrics in baselines.items()},
        "differences": {"mine": GAPS, "third": {"hits": entry(0.125, -0.125, 0.375)}},
        "own_minus_arms": {"control": GAPS, "third": {"hits": entry(0.125, -0.5, 0.75)}},
        "own_minus_baseline": {"known": {"hits": entry(-0.25, -0.5, -0.125)}},
        "training": {arm: COST | {"learns_from_reward": arm == "mine"} for arm in values},
        "moved": {"mine": True},
        "bar": {"mine": {"hits": {"verdict": "met", "conditions": told, "control_meets": False}}},
    } | changes  # fmt: skip


BEST: dict[str, Any] = {"metric": "hits", "kind": "best", "best": {"step": 4, "value": 0.5}, "last": {"step": 7, "value": 0.25}}


def test_the_model_to_take_is_the_best_of_all_arms_on_the_validation_split() -> None:
    """The control has the higher validation value, the other arm the higher test value: the validation decides."""
    assert read_answer(document(), SUITE).model is None
    best = {"mine": BEST, "control": BEST | {"best": {"step": 2, "value": 0.75}}}
    answer = read_answer(document(best_validation=best), SUITE)
    assert answer.model is not None
    assert answer.model.name == "control.best"
    said = "model to take: control.best, 0.75 validation Hits after 2 steps (after the last: 0.25)"
    assert said in answer.remarks
    assert f"- {said}" in answer.markdown
    assert Answer.model_validate(answer.model_dump(mode="json")) == answer
    # Where the best are the last ones, or the arm's model itself, nobody looks for another one.
    at_end = {"mine": BEST | {"best": {"step": 7, "value": 0.25}}}
    alone = {"mine": BEST | {"kind": "model"}}
    taken = [read_answer(document(best_validation=one), SUITE).model for one in (at_end, alone)]
    assert [one and one.name for one in taken] == ["mine", "mine"]
    assert [one and "(" in one.text for one in taken] == [False, True]
    # Values of two metrics do not compare, and equal ones leave the first arm.
    other = {"mine": BEST, "third": BEST | {"metric": "reward/mean"}}
    assert read_answer(document(best_validation=other), SUITE).model is None
    first = read_answer(document(best_validation={"third": BEST, "mine": BEST}), SUITE).model
    assert first is not None
    assert first.arm == "third"


def test_every_figure_of_the_document_stands_in_its_place() -> None:
    answer = read_answer(document(), SUITE)
    assert (answer.verdict, answer.reason, answer.learned) == ("better", "", "yes")
    assert answer.primary.text == "Hits 0.50 → 0.75, +0.25 [+0.12, +0.38]"
    assert answer.sentence == f"{answer.primary.text} on 40 val rows of 20 writers"
    assert answer.short == "0.50 → 0.75 Hits"
    assert answer.headline == f"Letters: {answer.primary.text}, better"
    assert answer.why == "better beside its own start, the control and the best fixed rule"
    assert [row.metric for row in answer.rows] == ["hits", "error"]  # the primary metric first
    assert [(one.kind, one.name, one.change.before) for one in answer.conditions] == [
        ("start", "start", 0.375), ("control", "control", 0.5), ("fixed", "guess", 0.25),
    ]  # fmt: skip
    assert answer.fixed is not None
    assert answer.fixed.change.verdict_text == "Better, +0.25"
    assert answer.ceiling is not None
    assert (answer.ceiling.name, answer.ceiling.change.before, answer.ceiling.change.verdict) == ("known", 1.0, "worse")
    others = [(one.name, one.change.before, one.change.verdict_text) for one in answer.arms]
    assert others == [("control", 0.5, "Better, +0.25"), ("third", 0.625, "No difference shown")]
    assert (answer.seeds, answer.not_covered, answer.commit, answer.run) == ((3,), "the luck of a seed", "0123abc", "r")
    assert answer.cost["mine"].model_dump() == COST | {"seconds": None}
    assert Answer.model_validate(answer.model_dump(mode="json")) == answer


def test_what_no_arm_has_a_value_of_is_no_row_and_says_why() -> None:
    nothing = {"value": None, "ci95": None, "reason": "undefined: nobody drew an outline"}
    values = {arm: {"hits": entry(value), "error": nothing} for arm, value in (("control", 0.5), ("mine", 0.75))}
    arms = {arm: {"metrics": metrics} for arm, metrics in values.items()}
    two = {"arms": arms, "own_minus_arms": {"control": GAPS}}
    answer = read_answer(document(**two, differences={"mine": {"hits": GAPS["hits"]}}), SUITE)
    assert [row.metric for row in answer.rows] == ["hits"]
    assert answer.undefined == {"Error": "nobody drew an outline"}
    arms["control"]["metrics"]["error"] = entry(1.0)  # of one arm alone it stays
    assert [row.metric for row in read_answer(document(**two), SUITE).rows] == ["hits", "error"]


def test_a_metric_counts_by_its_good_side_and_not_at_all_without_one() -> None:
    gaps = GAPS | {"error": entry(0.5, 0.25, 0.75)}
    answer = read_answer(document(differences={"mine": gaps}), SUITE)
    assert (answer.worse, answer.improved, answer.looked_at) == (("Error",), ("Hits",), 2)
    assert [row.tone for row in answer.rows] == ["better", "worse"]


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({"differences": {"mine": GAPS | {"hits": entry(0.25, 0.0, 0.5)}}}, "no difference shown", ""),
        ({"differences": {"mine": GAPS | {"hits": entry(-0.25, -0.5, -0.125)}}}, "worse", ""),
        ({"differences": {"mine": GAPS | {"hits": entry(0.25, reason="no interval")}}}, "cannot be shown", "no interval"),
        ({"n": {"examples": 40, "clusters": 9, "cluster": "writer_id"}}, "cannot be shown", "fewer than 10 writers show nothing"),
        ({"n": {"examples": 40, "clusters": 10, "cluster": "writer_id"}}, "better", ""),
        ({"baseline_arm": "control", "own_minus_arms": {}}, "cannot be shown", "no other arm was trained"),
        ({"not_run": "supervised"}, "cannot be shown", "the control, supervised, was not trained"),
    ],
)  # fmt: skip
def test_what_a_verdict_asks_for(changes: dict[str, Any], verdict: str, reason: str) -> None:
    answer = read_answer(document(**changes), SUITE)
    assert (answer.verdict, answer.reason) == (verdict, reason)
    assert answer.sentence.endswith(reason)


def test_without_a_control_nothing_stands_in_its_place() -> None:
    """Another arm is what the document compares with then, and is named as what it is."""
    answer = read_answer(document(not_run="plain"), SUITE)
    assert (answer.control, answer.primary.text) == ("plain", "Hits 0.75")
    assert [(row.before, row.difference, row.gap) for row in answer.rows] == [(None, None, "")] * 2
    assert answer.sentence == "Hits 0.75 on 40 val rows of 20 writers: the control, plain, was not trained"
    assert "against the arm control (0.50): better, +0.25" in answer.remarks
    alone = read_answer(document(baseline_arm="control", own_minus_arms={}), SUITE)
    assert (alone.primary.text, alone.looked_at, alone.worse) == ("Hits 0.50", 0, ())


def test_an_arm_that_was_trained_longer_is_not_called_better() -> None:
    training = document()["training"]
    longer = training | {"mine": training["mine"] | {"steps": 8}}
    answer = read_answer(document(training=longer), SUITE)
    assert (answer.verdict, answer.reason) == ("cannot be shown", "it was trained for 8 steps, the control for 7")
    assert [row.tone for row in answer.rows] == ["", ""]
    worse = document(training=longer, differences={"mine": GAPS | {"hits": entry(-0.25, -0.5, -0.125)}})
    assert read_answer(worse, SUITE).verdict == "worse"


@pytest.mark.parametrize(
    ("changes", "learned", "why"),
    [
        ({"moved": {"mine": False}}, "fixed, not learned", "its policy chooses as it did at its start"),
        ({"training": {"mine": {"steps": 7, "samples": 1, "reward_calls": 0, "learns_from_reward": False}}}, "no",
         "no loss of it reads a reward"),
        ({"bar": {}}, "cannot be shown", "the task names nothing that it must be better than"),
    ],
)  # fmt: skip
def test_what_is_known_before_the_bar(changes: dict[str, Any], learned: str, why: str) -> None:
    answer = read_answer(document(**changes), SUITE)
    assert (answer.learned, answer.why) == (learned, why)


@pytest.mark.parametrize(
    ("verdict", "told", "learned", "why"),
    [
        ("missed", {"start": "worse", "control": "better"}, "no", "worse beside its own start"),
        ("not shown", {"start": "better", "control": "no difference shown"}, "not shown",
         "no difference shown beside the control"),
    ],
)  # fmt: skip
def test_the_bar_decides_whether_it_learned(verdict: str, told: dict[str, str], learned: str, why: str) -> None:
    conditions = {kind: condition(one, kind) for kind, one in told.items()}
    bar = {"mine": {"hits": {"verdict": verdict, "conditions": conditions, "control_meets": False}}}
    answer = read_answer(document(bar=bar), SUITE)
    assert (answer.learned, answer.why) == (learned, why)
    bar["mine"]["hits"] |= {
        "verdict": "no statement",
        "conditions": {"start": condition("no statement", "start") | {"ci95": None}},
    }
    answer = read_answer(document(bar=bar), SUITE)
    assert (answer.learned, answer.why) == ("cannot be shown", "nothing known beside its own start")


def test_a_task_without_a_bar_is_judged_by_the_first_of_its_short_table() -> None:
    answer = read_answer(document(bar={}), replace(SUITE, bar=None))
    assert answer.primary.metric == "error"
    assert (answer.verdict, answer.ceiling) == ("better", None)
    alone = read_answer(document(bar={}), replace(SUITE, bar=None, headline=()))  # neither: the first that has a good side
    assert alone.primary.metric == "hits"
    assert [row.metric for row in alone.rows] == ["hits", "error", "length"]


def test_a_condition_says_what_the_bar_has_decided() -> None:
    """An arm that was trained longer is not better than the control, whatever the interval says."""
    unfair = {"control": condition("no difference shown", "control"), "fixed": condition("better", "guess") | {"ci95": None}}
    bar = {"mine": {"hits": {"verdict": "not shown", "conditions": unfair, "control_meets": False}}}
    answer = read_answer(document(bar=bar), SUITE)
    assert [one.change.verdict for one in answer.conditions] == ["no difference shown", "cannot be shown"]


def test_what_nobody_should_read_is_named() -> None:
    same = {"mine": {"mask": {"is_same": True}, "map": {"is_same": False}}, "control": {"map": {"is_same": True}}}
    values = document()["arms"]
    values["mine"]["metrics"]["length"] = entry(None, reason="undefined: no rows")
    answer = read_answer(document(sameness=same, arms=values), SUITE)
    assert answer.same_everywhere == ("mask",)
    assert answer.undefined == {"Length": "no rows"}


def grid(headline: str | None = None, **differences: dict[str, Any]) -> dict[str, Any]:
    """The result of a comparison (of cross-validation with ``headline``): hits of the control 0.5, of an arm 0.5 + its gap."""
    values = {"control": 0.5} | {arm: 0.5 + gap["value"] for arm, gap in differences.items()}

    def kinds(one: dict[str, Any]) -> dict[str, Any]:
        return {headline: one, "pooled": entry(9.0)} if headline else one

    return {
        "task": "letters", "control": "control", "seeds": [0, 1], "commit": "0123abc", "run": "r", "interval": {},
        "n": {"examples": 40, "clusters": 20, "cluster": "writer_id"}, "primary_metrics": ["hits"],
        "arms": {arm: {"metrics": {"hits": kinds(entry(value))}} for arm, value in values.items()},
        "differences": {arm: {"hits": kinds(gap)} for arm, gap in differences.items()},
    } | ({"headline": headline, "seeds": {arm: [0, 1] for arm in values}} if headline else {"split": "val"})  # fmt: skip


def corrected(value: float, low: float, high: float, *, p: float = 0.01) -> dict[str, Any]:
    """A difference whose own interval is half as wide as the simultaneous one."""
    return entry(value, (value + low) / 2, (value + high) / 2, p_holm=p, ci95_simultaneous=[low, high])


def test_the_answer_of_a_grid_is_of_the_best_arm_with_the_simultaneous_interval() -> None:
    arms = {"good": corrected(0.25, 0.125, 0.375), "best": corrected(0.375, -0.125, 0.875), "bad": corrected(-0.25, -0.5, -0.125)}
    answer = read_grid_answer(grid(**arms), SUITE)
    assert (answer.arm, answer.verdict) == ("best", "no difference shown")  # though its own interval leaves out 0
    assert answer.primary.text == "Hits 0.50 → 0.88, +0.38 [-0.12, +0.88]"
    assert [(one.title, one.verdict, one.interval) for one in answer.others] == [
        ("good", "better", (0.125, 0.375)), ("best", "no difference shown", (-0.125, 0.875)), ("bad", "worse", (-0.5, -0.125)),
    ]  # fmt: skip
    assert answer.table == answer.others
    assert answer.question == "Letters: is best, the best of 3 arms, better than control, its control?"
    assert answer.heads == ("arm", "control", "Hits", "arm - control")
    assert answer.sentence.endswith("on 40 val rows of 20 writers, mean over 2 seeds")
    assert answer.learned == "cannot be shown"


def test_one_arm_of_a_grid_is_told_as_in_a_run_and_cross_validation_by_its_headline() -> None:
    answer = read_grid_answer(grid("stratified", mine=corrected(0.25, 0.125, 0.375)), SUITE)
    assert (answer.arm, answer.verdict, answer.split, answer.seeds) == ("mine", "better", "out-of-fold", (0, 1))
    assert (answer.primary.before, answer.primary.after, answer.others) == (0.5, 0.75, ())
    assert [row.metric for row in answer.table] == ["hits", "error"]
    weak = grid(mine=corrected(0.25, 0.125, 0.375, p=0.05))
    assert read_grid_answer(weak, SUITE).verdict == "no difference shown"
    longer = weak | {"training": {arm: COST | {"steps": steps} for arm, steps in (("control", 7), ("mine", 8))}}
    longer["differences"] = {"mine": {"hits": corrected(0.25, 0.125, 0.375)}}
    assert read_grid_answer(longer, SUITE).reason == "it was trained for 8 steps, the control for 7"


def test_where_less_is_better_the_best_arm_has_the_greatest_fall() -> None:
    result = grid(up=entry(0.25, 0.1, 0.4), down=entry(-0.25, -0.4, -0.1))
    result["primary_metrics"] = ["error"]
    for part in (*result["arms"].values(),):
        part["metrics"] = {"error": part["metrics"]["hits"]}
    result["differences"] = {arm: {"error": gaps["hits"]} for arm, gaps in result["differences"].items()}
    assert read_grid_answer(result, SUITE).arm == "down"


def test_the_cost_is_told_with_the_time_that_it_took() -> None:
    answer = read_answer(document(), SUITE, seconds={"mine": 90.0})
    assert answer.remarks[-1] == "cost of mine: 7 steps, 70 samples, 1.5 min"
    assert read_answer(document(), SUITE).remarks[-1] == "cost of mine: 7 steps, 70 samples"
    trials = {"mine.seed0": {"seconds": 10.0}, "mine.seed1": {"seconds": 20.0}, "control.seed0": {"seconds": None}}
    found = read_grid_answer(grid(mine=corrected(0.25, 0.125, 0.375)) | {"trials": trials, "training": {"mine": COST}}, SUITE)
    assert found.cost["mine"].text == "7 steps, 70 samples, 15 s"
