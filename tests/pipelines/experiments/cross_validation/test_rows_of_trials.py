"""Which examples each kind of trial trains on, watches, is chosen by and tests: written out by hand, trial by trial."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from tiny_folds import EVALUATION, make_fold_examples, make_params
from tiny_grid import Memory
from tiny_rows import ROWS

from grpo_pipeline.pipelines.evaluation.budget import Budget
from grpo_pipeline.pipelines.experiments.cross_validation.candidates import Settings
from grpo_pipeline.pipelines.experiments.cross_validation.choice import choose, nothing_to_choose
from grpo_pipeline.pipelines.experiments.cross_validation.document import describe_fold
from grpo_pipeline.pipelines.experiments.cross_validation.fold_plan import inner_plan, outer_plan
from grpo_pipeline.pipelines.experiments.cross_validation.nodes import fold_table, plan_folds, score_tested_rows, suite_of
from grpo_pipeline.pipelines.experiments.cross_validation.out_of_fold import OutOfFold, check_rows, collect, ensemble
from grpo_pipeline.pipelines.experiments.cross_validation.out_of_fold_scores import Resamples
from grpo_pipeline.pipelines.experiments.trials.preparation import resplit_table
from grpo_pipeline.pipelines.experiments.trials.records import (
    CompareError,
    Plan,
    Trial,
    TrialHeader,
    TrialRecord,
    plan_grid,
)
from grpo_pipeline.statistics.bootstrap import cluster_weights
from grpo_pipeline.statistics.metric import MetricSuite, Unit
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.folds import ExampleFold, FoldPlan, read_plan

# Two outer folds of examples a to h; in the first two inner ones, in the second three.
NESTED = FoldPlan(
    "nested",
    (
        ExampleFold("fold0", ("a", "b", "c"), ("d",), ("e", "f", "g", "h"), inner=(
            ExampleFold("fold0.inner0", ("a",), ("b",), ("c", "d")), ExampleFold("fold0.inner1", ("c",), ("d",), ("a", "b")),
        )),
        ExampleFold("fold1", ("e", "f"), ("g", "h"), ("a", "b", "c", "d"), inner=(
            ExampleFold("fold1.inner0", ("f",), ("g",), ("e", "h")), ExampleFold("fold1.inner1", ("h",), ("e",), ("f", "g")),
            ExampleFold("fold1.inner2", ("g",), ("f",), ("h",), left_out=("e",)),
        )),
    ),
)  # fmt: skip
SETTINGS = Settings("attention", {"control": {"small": None, "large": None}, "own": {"small": None, "large": None}})
PLAIN = Settings("attention", {"control": {"": None}, "own": {"": None}})
CHOICES = {"fold0": {"control": "small", "own": "large"}, "fold1": {"control": "large", "own": "small"}}


def parts(train: str, val: str, test: str) -> dict[str, str]:
    return dict.fromkeys(train, "train") | dict.fromkeys(val, "val") | dict.fromkeys(test, "test")


def splits(plan: Plan) -> dict[str, object]:
    found = {trial.key: trial.split for trial in plan.trials}
    assert len(found) == len(plan.trials)
    return found


def test_inner_trials_never_hold_an_example_of_the_outer_test_part() -> None:
    inner = {
        "0.inner0": parts("a", "b", "cd"), "0.inner1": parts("c", "d", "ab"),
        "1.inner0": parts("f", "g", "eh"), "1.inner1": parts("h", "e", "fg"), "1.inner2": parts("g", "f", "h"),
    }  # fmt: skip
    expected = {
        f"{arm}.{name}.seed{seed}.fold{fold}": split
        for seed in (4, 9)
        for fold, split in inner.items()
        for arm in ("control", "own")
        for name in ("small", "large")
    }
    found = splits(inner_plan(SETTINGS, NESTED, (4, 9)))
    assert found == expected
    assert list(found) == list(expected)  # seed by seed, fold by fold: what is stopped holds whole comparisons


def test_outer_trials_have_the_chosen_settings_and_their_own_fold() -> None:
    outer = parts("abc", "d", "efgh"), parts("ef", "gh", "abcd")
    expected = {
        f"control.small.seed{seed}.fold{fold}" if fold == 0 else f"control.large.seed{seed}.fold{fold}": outer[fold]
        for seed in (4, 9)
        for fold in (0, 1)
    }
    own = {f"own.{'large' if fold == 0 else 'small'}.seed{seed}.fold{fold}": outer[fold] for seed in (4, 9) for fold in (0, 1)}
    plan = outer_plan(SETTINGS, NESTED, (4, 9), CHOICES)
    assert splits(plan) == expected | own
    assert [trial.key for trial in plan.trials][:4] == [
        "control.small.seed4.fold0", "own.large.seed4.fold0", "control.large.seed4.fold1", "own.small.seed4.fold1",
    ]  # fmt: skip
    assert [(trial.seed, trial.fold) for trial in plan.trials] == [(s, f) for s in (4, 9) for f in ("0", "1") for _ in range(2)]


def test_held_out_examples_are_predicted_by_every_fold_and_chosen_by_in_none() -> None:
    plan = replace(NESTED, scheme="kfold", held_out=("y", "z"))
    found = splits(outer_plan(PLAIN, plan, (0,), nothing_to_choose(PLAIN, plan)))
    assert found == {
        f"{arm}.seed0.fold{fold}": split
        for arm in ("control", "own")
        for fold, split in ((0, parts("abc", "d", "efghyz")), (1, parts("ef", "gh", "abcdyz")))
    }
    inner = splits(inner_plan(PLAIN, plan, (0,)))
    assert len(inner) == 10
    assert not any({"y", "z"} & set(split) for split in inner.values())
    assert read_plan(plan.document()) == plan


def test_a_comparison_trains_every_arm_with_every_seed_on_the_split_of_the_data() -> None:
    plan = plan_grid("attention", {"control": None, "own": None}, (3, 1))
    assert plan.trials == (Trial("control", 3), Trial("own", 3), Trial("control", 1), Trial("own", 1))
    assert {trial.split for trial in plan.trials} == {None}


def test_a_choice_reads_the_inner_trials_of_its_own_fold_and_arm_alone() -> None:
    """Every other number that is stored says the opposite: of the outer trials, of another fold, arm or seed."""
    values = {
        # fold0: control small (0.5 + 0.7 + 0.6 + 0.6) / 4 = 0.6 > large 0.5; own the other way round
        ("control", 0): {"small": (0.5, 0.7, 0.6, 0.6), "large": (0.5, 0.5, 0.5, 0.5)},
        ("own", 0): {"small": (0.1, 0.1, 0.2, 0.2), "large": (0.3, 0.1, 0.3, 0.1)},
        # fold1 has three inner folds
        ("control", 1): {"small": (0.2,) * 6, "large": (0.1, 0.3, 0.2, 0.2, 0.2, 0.16)},
        ("own", 1): {"small": (0.9,) * 6, "large": (0.8,) * 6},
    }
    inner = {0: 2, 1: 3}
    stored = {}
    for (arm, fold), by_candidate in values.items():
        for name, numbers in by_candidate.items():
            keys = [f"{arm}.{name}.seed{seed}.fold{fold}.inner{i}" for seed in (4, 9) for i in range(inner[fold])]
            stored |= dict(zip(keys, numbers, strict=True))
            opposite = 0.0 if name == "large" else 1.0
            stored |= {f"{arm}.{name}.seed{seed}.fold{fold}": opposite for seed in (4, 9)}
            stored |= {f"{arm}.{name}.seed5.fold{fold}.inner{i}": opposite for i in range(3)}
    headers = {
        key: TrialHeader(key, "attention", "x", 0, "x", "finished", 1.0, "d", {}, {"auroc": value, "loss": -value})
        for key, value in stored.items()
    }
    found = choose(SETTINGS, NESTED, headers, seeds=(4, 9), metric="auroc", better="higher")
    assert [(one.fold, one.arm, one.chosen, one.n) for one in found] == [
        ("fold0", "control", "small", 4), ("fold0", "own", "large", 4),
        ("fold1", "control", "small", 6), ("fold1", "own", "small", 6),
    ]  # fmt: skip
    assert [dict(one.means) for one in found] == [
        pytest.approx({"small": 0.6, "large": 0.5}), pytest.approx({"small": 0.15, "large": 0.2}),
        pytest.approx({"small": 0.2, "large": 1.16 / 6}), pytest.approx({"small": 0.9, "large": 0.8}),
    ]  # fmt: skip
    lowest = choose(SETTINGS, NESTED, headers, seeds=(4, 9), metric="loss", better="lower")
    assert [one.chosen for one in lowest] == [one.chosen for one in found]


def test_a_trial_is_scored_without_the_held_out_examples() -> None:
    """Of four cores one positive ranks above one negative; the two held-out ones would turn that round."""
    changed = {"core_id": ["a", "b", "1", "z"], "patient_id": [*"pqrs"], "label": [0, 1, 1, 0], "prob": [0.3, 0.6, 0.1, 0.9]}
    rows = ROWS.iloc[:4].assign(**changed)
    suite = suite_of(EVALUATION).for_names(["auroc"])
    given = {"suite": suite, "cluster": "patient_id"}
    assert score_tested_rows(rows, "policy", held_out=["1", "z"], **given)["auroc"] == 1.0
    assert score_tested_rows(rows, "policy", held_out=[], **given)["auroc"] == 0.25


@pytest.mark.parametrize(
    ("rows", "refused"),
    [(["e", "f", "g", "h", "y"], None), (["e", "f", "g", "y"], "h"), (["e", "f", "g", "h", "y", "a"], "a"), ([*"efgh"], "y")],
)
def test_predictions_must_be_of_the_examples_that_their_fold_tests(rows: list[str], refused: str | None) -> None:
    plan = FoldPlan("kfold", NESTED.folds[:1], ("y",))
    unit = Unit(column="core_id", noun="core", facts=())
    given = {"fold0": pd.DataFrame({"core_id": rows})}, plan, {"fold0": "own.seed0.fold0"}
    if refused is None:
        check_rows(*given, unit=unit, key="core_id")
    else:
        with pytest.raises(ValueError, match=rf"predictions of own.seed0.fold0 must hold the 5 cores .*core '{refused}' is on"):
            check_rows(*given, unit=unit, key="core_id")
    check_rows(*given, unit=unit, key="another")  # rows that are no examples cannot be compared


def test_the_folds_together_say_the_mean_of_what_each_says() -> None:
    held = pd.DataFrame(
        {
            "core_id": ["y", "y", "z", "z", "x", "x"],
            "fold": ["f0", "f1"] * 3,
            "prob": [0.2, 0.4, 0.9, 0.3, 0.5, 0.5],  # of x both say the same
            "involvement": [0.4, 0.4, 0.1, 0.1, 0.7, 0.7],
        }
    )
    found = ensemble(held, "core_id")
    assert found.columns.tolist() == ["core_id", "prob", "involvement"]
    assert found["core_id"].tolist() == ["x", "y", "z"]
    assert found["prob"].tolist() == pytest.approx([0.5, 0.3, 0.6])
    assert found["involvement"].tolist() == [0.7, 0.4, 0.1]


COWS = MetricSuite(unit=Unit("cow", "cow", ()), metrics={}, rules=("own", "other"), required=("cow", "rule", "milk"))


def stored(held_out: str = "y", **changes: str) -> Memory:
    """Return trials of two folds, arms and seeds; a cow's milk says arm, seed and fold; fold 1 has twice the steps."""
    trials = Memory()
    for a, arm in enumerate(("control", "own")):
        for seed in (4, 9):
            for number, cows in enumerate(("efgh" + held_out, "abcd" + held_out)):
                key = f"{arm}.seed{seed}.fold{number}"
                rows = pd.concat(
                    [pd.DataFrame({"cow": [*cows], "farm": [*cows], "rule": rule, "milk": 100.0 * a + seed + number / 10 + plus})
                     for rule, plus in (("own", 0), ("other", 50))]
                )  # fmt: skip
                steps = [{"split": "train", "samples": 4.0, "reward_calls": 2.0, "policy/loss": 1.0}] * (2 * number + 2)
                header = TrialHeader(key, "cows", arm, seed, str(number), "finished", 1.0, "d", {})
                if key in changes:
                    header = replace(header, status="failed", reason=changes[key])
                trials.keep(TrialRecord(header, rows, steps))
    return trials


def collected(trials: Memory, held_out: str = "y") -> OutOfFold:
    arms = {
        "control": {"": SimpleNamespace(description=SimpleNamespace(rule="own", baseline=None))},
        "own": {"": SimpleNamespace(description=SimpleNamespace(rule="other", baseline="mean"))},
    }
    plan, settings = replace(NESTED, scheme="kfold", held_out=(*held_out,)), Settings("cows", arms)
    return collect(
        settings, plan, nothing_to_choose(settings, plan), trials, seeds=(4, 9), suite=COWS, cluster="farm", key_of_examples="cow"
    )


def test_what_the_folds_predict_is_put_together_by_arm_seed_and_rule() -> None:
    found = collected(stored())
    for arm, plus in (("control", 0.0), ("own", 150.0)):
        for seed in (4, 9):
            rows, held = found.tested[arm][seed], found.held_out[arm][seed]
            assert rows["cow"].tolist() == [*"abcdefgh"]
            assert rows["fold"].tolist() == ["fold1"] * 4 + ["fold0"] * 4
            assert rows["milk"].tolist() == pytest.approx([plus + seed + 0.1] * 4 + [plus + seed] * 4)
            assert held["cow"].tolist() == ["y", "y"]
            assert held["milk"].tolist() == pytest.approx([plus + seed, plus + seed + 0.1])
    # (2 + 4) / 2 steps of 4 samples; what is fitted and not trained has no budget.
    assert found.budgets == {"control": Budget(3, 12, 6, True)}
    assert found.missing == {}
    assert collected(stored(""), "").held_out == {}
    lost = collected(stored(**{"own.seed4.fold1": "no memory", "own.seed9.fold0": "no disk"}))
    assert lost.missing == {"own.seed4.fold1": "no memory", "own.seed9.fold0": "no disk"}
    assert (list(lost.tested["control"]), list(lost.tested["own"])) == ([4, 9], [])
    with pytest.raises(CompareError, match="no disk"):
        collected(stored(**{"control.seed4.fold0": "no disk", "control.seed9.fold0": "no disk"}))


def test_resamples_are_those_of_the_clusters_whatever_the_order_of_the_rows() -> None:
    rows = pd.DataFrame({"patient_id": [*"cabbac"]})
    params = EVALUATION.model_copy(update={"seed": 3, "resamples": 40})
    weights = Resamples.draw(rows, params).of(rows)
    expected = cluster_weights(pd.Series([*"abc"]), resamples=40, seed=3)[:, [2, 0, 1, 1, 0, 2]]
    assert weights.tolist() == expected.tolist()
    assert Resamples.draw(rows[::-1], params).of(rows).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("labels", "positives", "single"), [([1, 0, 1, 1], 1, False), ([1, 1, 0, 0], 2, True), ([0, 2, 1, 1], None, False)]
)
def test_a_fold_is_described_by_what_it_tests_itself(labels: list[int], positives: int | None, single: bool) -> None:
    """The first two are of fold0, the others of folds that come after it; grades are no classes."""
    examples = pd.DataFrame({"fold": ["fold0", "fold0", "fold1", "fold2"], "label": labels})
    assert describe_fold("fold0", ("a", "b", "c"), ("d",), examples) == {
        "name": "fold0", "train": 3, "val": 1, "test": 2, "test_positives": positives, "single_class": single,
    }  # fmt: skip
    assert describe_fold("fold0", (), (), examples.drop(columns="label"))["test_positives"] is None


def test_the_test_split_is_held_out_of_every_fold_and_no_other() -> None:
    """30 cores of 16 patients: 16 train, 4 validate and 10 test."""
    examples = make_fold_examples()
    plan = read_plan(plan_folds(make_params("kfold"), EVALUATION, examples))
    table = examples.table
    assert sorted(plan.held_out) == sorted(table.loc[table["split"] == "test", "core_id"])
    tested = sorted(core for fold in plan.folds for core in fold.test)
    assert tested == sorted(table.loc[table["split"] != "test", "core_id"])
    patient_of = dict(zip(table["core_id"], table["patient_id"], strict=True))
    for fold in plan.folds:
        parts = [{patient_of[core] for core in part} for part in (fold.train, fold.val, fold.test)]
        assert len(set.union(*parts)) == sum(map(len, parts))


def test_what_is_divided_is_each_example_of_a_split_once() -> None:
    spec = find_task("attention")
    table = pd.DataFrame(
        {"core_id": ["a", "a", "b", "c", "d"], "patient_id": [1, 1, 2, 2, 3], "label": [1, 1, 0, 1, 0],
         "center": ["x", "x", "y", "y", "x"], "split": ["train", "train", "val", "test", ""]}
    )  # fmt: skip
    found = fold_table(table, spec, cluster="patient_id")
    assert found.to_dict("list") == {
        "example": ["a", "b", "c"], "cluster": ["1", "2", "2"], "label": [1, 0, 1], "center": ["x", "y", "y"],
        "split": ["train", "val", "test"],
    }  # fmt: skip
    bare = fold_table(table[["core_id", "split"]], spec, cluster="patient_id")
    assert bare["cluster"].tolist() == ["a", "b", "c"]
    assert (bare["label"].tolist(), bare["center"].tolist()) == ([0, 0, 0], ["", "", ""])


def test_an_example_that_no_split_names_is_in_none_and_an_unknown_one_is_refused() -> None:
    table = pd.DataFrame({"core_id": [7, 8, 9], "split": ["train", "val", "test"]})
    found = resplit_table(table, {"7": "test", "9": "train"}, key="core_id", noun="core")
    assert found["split"].tolist() == ["test", "", "train"]
    assert table["split"].tolist() == ["train", "val", "test"]
    with pytest.raises(ValueError, match="6"):
        resplit_table(table, {"7": "test", "6": "train"}, key="core_id", noun="core")
