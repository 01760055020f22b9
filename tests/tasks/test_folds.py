"""Folds: every core tested once, no patient on two sides, nothing held out leaks, and the same folds from the same seed."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.model_selection import StratifiedGroupKFold
from tiny_folds import RENAMED
from tiny_folds import plan_cores as plan_folds

from grpo_pipeline.tasks.folds import deal_groups, group_strata, read_plan
from grpo_pipeline.tasks.params import FoldParams

SCHEMES = ("kfold", "nested", "leave_one_center_out")


def params(scheme, **changes):
    values = {"scheme": scheme, "folds": 4, "inner_folds": 3, "val_share": 0.2, "seed": 0}
    return FoldParams.model_validate(values | changes)


def cores(*, patients=48, centers=3, seed=0, travellers=2):
    """Cores of patients with 1 to 7 cores each; the first ``travellers`` patients were seen in two centers."""
    rng = np.random.default_rng(seed)
    number = np.repeat(np.arange(patients), rng.integers(1, 8, patients))
    moved = (number < travellers) & (rng.random(len(number)) < 0.5)
    return pd.DataFrame(
        {
            "core_id": [f"c{i:04d}" for i in rng.permutation(len(number))],
            "patient_id": [f"p{g:03d}" for g in number],
            "center": [f"center{(g + m) % centers}" for g, m in zip(number, moved, strict=True)],
            "label": ((number % 2 == 0) & (rng.random(len(number)) < 0.7)).astype(int),
        }
    )


def drawn_splits(table):
    """A test split of every fourth patient; how train and val are told apart does not matter here."""
    is_test = table["patient_id"].str[1:].astype(int) % 4 == 3
    rest = table.loc[~is_test, "core_id"].tolist()
    return {"train": rest[3:], "val": rest[:3], "test": table.loc[is_test, "core_id"].tolist()}


def patients_of(table, core_ids):
    return set(table.loc[table["core_id"].isin(core_ids), "patient_id"])


def every_fold(plan):
    return [fold for outer in plan.folds for fold in (outer, *outer.inner)]


tables = st.builds(cores, seed=st.integers(0, 10_000), travellers=st.integers(0, 4))


@settings(max_examples=12)
@given(table=tables, scheme=st.sampled_from(SCHEMES), seed=st.integers(0, 99))
def test_every_core_is_tested_exactly_once_or_held_out(table, scheme, seed):
    splits = drawn_splits(table)
    plan = plan_folds(table, splits, params(scheme, seed=seed))
    tested = [core for fold in plan.folds for core in fold.test]
    assert sorted([*tested, *plan.held_out]) == sorted(table["core_id"])
    assert sorted(plan.held_out) == (sorted(splits["test"]) if scheme == "kfold" else [])


@settings(max_examples=12)
@given(table=tables, scheme=st.sampled_from(SCHEMES), seed=st.integers(0, 99))
def test_no_patient_is_on_two_sides_of_any_fold(table, scheme, seed):
    plan = plan_folds(table, drawn_splits(table), params(scheme, seed=seed))
    held_out = patients_of(table, plan.held_out)
    for fold in every_fold(plan):
        sides = [patients_of(table, part) for part in (fold.train, fold.val, fold.test)]
        assert all(sides)
        assert not any(one & other for one, other in combinations(sides, 2))
        assert not held_out & set().union(*sides)


@settings(max_examples=12)
@given(table=tables, seed=st.integers(0, 99))
def test_inner_folds_divide_the_outer_training_part_and_never_see_its_test(table, seed):
    for outer in plan_folds(table, drawn_splits(table), params("nested", seed=seed)).folds:
        assert len(outer.inner) == 3
        assert sorted(core for fold in outer.inner for core in fold.test) == sorted(outer.train + outer.val)
        for inner in outer.inner:
            assert sorted(inner.train + inner.val + inner.test) == sorted(outer.train + outer.val)


@settings(max_examples=12)
@given(table=tables, scheme=st.sampled_from(SCHEMES), order=st.randoms(use_true_random=False))
def test_order_of_the_rows_does_not_matter(table, scheme, order):
    positions = list(range(len(table)))
    order.shuffle(positions)
    settings_ = params(scheme)
    assert plan_folds(table.iloc[positions], drawn_splits(table), settings_) == plan_folds(table, drawn_splits(table), settings_)


@settings(max_examples=12)
@given(table=tables, folds=st.integers(2, 6), seed=st.integers(0, 99))
def test_folds_differ_by_at_most_one_patient_in_total_and_in_every_stratum(table, folds, seed):
    strata = group_strata(table.rename(columns=RENAMED))
    plan = plan_folds(table, drawn_splits(table), params("nested", folds=folds, inner_folds=2, seed=seed))
    tested = [patients_of(table, fold.test) for fold in plan.folds]
    for stratum in set(strata.values()):
        counts = [sum(strata[patient] == stratum for patient in fold) for fold in tested]
        assert max(counts) - min(counts) <= 1
    assert max(map(len, tested)) - min(map(len, tested)) <= 1


def test_scikit_learn_lets_the_folds_differ_by_more_patients():
    """Why the folds are not drawn by StratifiedGroupKFold: it balances cores, and patients are what is resampled."""
    spread = []
    for seed in range(5):
        table = cores(seed=seed)
        kfold = StratifiedGroupKFold(4, shuffle=True, random_state=seed)
        sizes = [table["patient_id"].iloc[test].nunique() for _, test in kfold.split(table, table["label"], table["patient_id"])]
        spread.append(max(sizes) - min(sizes))
    assert max(spread) >= 3


def test_validation_takes_its_share_of_the_training_patients():
    table = cores(patients=120, travellers=0)
    for fold in plan_folds(table, drawn_splits(table), params("nested", folds=3)).folds:
        watched, trained = patients_of(table, fold.val), patients_of(table, fold.train)
        assert len(watched) == pytest.approx(0.2 * 80, abs=1)
        assert len(trained) + len(watched) == 80


def test_the_same_seed_gives_the_same_folds_and_another_one_others():
    table = cores()
    for scheme in SCHEMES:
        plans = [plan_folds(table, drawn_splits(table), params(scheme, seed=seed)) for seed in (0, 0, 1)]
        assert plans[0] == plans[1] != plans[2]


def test_parts_name_each_core_of_a_fold():
    fold = plan_folds(cores(), drawn_splits(cores()), params("kfold")).folds[1]
    parts = fold.parts()
    assert {name: sorted(core for core, part in parts.items() if part == name) for name in ("train", "val", "test")} == {
        "train": list(fold.train),
        "val": list(fold.val),
        "test": list(fold.test),
    }


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_plan_is_read_back_from_its_document(scheme):
    plan = plan_folds(cores(), drawn_splits(cores()), params(scheme))
    assert read_plan(plan.document()) == plan


CENTERS = pd.DataFrame(
    [
        *(("a0", "p0", "a", 0), ("a1", "p1", "a", 1), ("a2", "p2", "a", 0), ("a3", "p3", "a", 1), ("a4", "p9", "a", 1)),
        *(("b0", "p4", "b", 0), ("b1", "p5", "b", 1), ("b2", "p6", "b", 0), ("b3", "p7", "b", 1), ("b4", "p9", "b", 1)),
    ],
    columns=["core_id", "patient_id", "center", "label"],
)


def test_a_patient_of_two_centers_is_tested_in_each_and_never_trained_on_where_it_is_tested():
    first, second = plan_folds(CENTERS, {}, params("leave_one_center_out", val_share=0.3)).folds
    assert (first.name, first.test, first.left_out) == ("a", ("a0", "a1", "a2", "a3", "a4"), ("b4",))
    assert (second.name, second.test, second.left_out) == ("b", ("b0", "b1", "b2", "b3", "b4"), ("a4",))
    assert sorted(first.train + first.val) == ["b0", "b1", "b2", "b3"]
    assert sorted(second.train + second.val) == ["a0", "a1", "a2", "a3"]


@pytest.mark.parametrize(
    ("table", "settings_", "message"),
    [
        (CENTERS.assign(center="a"), params("leave_one_center_out"), "must have at least 2 centers .* got \\['a'\\]; use kfold"),
        (
            CENTERS.assign(center=["a", "", *"aaa", *"bbbbb"]),
            params("leave_one_center_out"),
            "center must be known .* got none for core 'a1'",
        ),
        (CENTERS, params("nested", folds=10), "cross_validation.folds must be at most .* got 10 for 9 patients"),
        (
            CENTERS,
            params("nested", folds=3, inner_folds=7),
            "cross_validation.inner_folds must be at most .* got 7 for 6 patients",
        ),
        (
            CENTERS.assign(label=[0] * 5 + [1] * 5),
            params("leave_one_center_out"),
            "training part of 'a' must hold cores of both classes, got 3 cores that all have label 1; use fewer folds",
        ),
        (
            CENTERS,
            params("leave_one_center_out", val_share=0.01),
            "validation part of 'a' must hold cores, got none of 4 patients; raise attention.cross_validation.val_share",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(table, settings_, message):
    with pytest.raises(ValueError, match=message):
        plan_folds(table, {}, settings_)


def test_a_missing_class_is_refused_inside_the_inner_folds_too():
    patients = [f"p{i:02d}" for i in range(20)]
    table = pd.DataFrame({"core_id": patients, "patient_id": patients, "center": "a", "label": [1, 1] + [0] * 18})
    with pytest.raises(ValueError, match=r"training part of 'fold0\.inner\d' must hold cores of both classes"):
        plan_folds(table, {}, params("nested", folds=2, inner_folds=2))


@pytest.mark.parametrize(
    "change", [{"folds": 1}, {"inner_folds": 1}, {"val_share": 0.0}, {"val_share": 0.6}, {"scheme": "loo"}, {"k": 3}]
)
def test_parameters_out_of_range_are_refused(change):
    with pytest.raises(ValidationError):
        params(**({"scheme": "kfold"} | change))


def test_equal_shares_take_turns():
    strata = {f"p{i}": (int(i > 4), "a") for i in range(8)}
    dealt = deal_groups(strata, [1 / 3] * 3, rng=np.random.default_rng(0))
    assert sorted(dealt.values()) == [0, 0, 0, 1, 1, 1, 2, 2]
    assert sorted(part for group, part in dealt.items() if strata[group] == (0, "a")) == [0, 0, 1, 1, 2]
