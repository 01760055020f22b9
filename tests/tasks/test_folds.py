"""Folds: every core tested once, no patient on two sides, nothing held out leaks, and the same folds from the same seed."""

import json
from collections import Counter
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_folds import plan_cores as plan_folds

from grpo_pipeline.tasks.folds import deal_groups, read_plan
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


tables = st.builds(cores, seed=st.integers(0, 10_000), travellers=st.integers(0, 4))


def differ_by_one(counts):
    return max(counts) - min(counts) <= 1


@settings(max_examples=8)
@given(table=tables, scheme=st.sampled_from(SCHEMES), folds=st.integers(2, 6), seed=st.integers(0, 99), order=st.randoms())
def test_folds_of_any_table(table, scheme, folds, seed, order):
    splits, settings_ = drawn_splits(table), params(scheme, folds=folds, seed=seed)
    plan = plan_folds(table, splits, settings_)
    positions = order.sample(range(len(table)), len(table))
    assert plan_folds(table.iloc[positions], splits, settings_) == plan
    assert read_plan(json.loads(json.dumps(plan.document()))) == plan
    # Every core is tested once or held out.
    assert plan.held_out == (tuple(sorted(splits["test"])) if scheme == "kfold" else ())
    assert sorted([core for fold in plan.folds for core in fold.test] + [*plan.held_out]) == sorted(table["core_id"])
    # No patient is on two sides; inner folds divide the training part of the outer one.
    patient = table.set_index("core_id")["patient_id"]
    within = [(fold, sorted({*table["core_id"]} - {*plan.held_out})) for fold in plan.folds]
    within += [(inner, sorted(outer.train + outer.val)) for outer in plan.folds for inner in outer.inner]
    for fold, known in within:
        sides = [set(patient[list(part)]) for part in (fold.train, fold.val, fold.test, plan.held_out)]
        assert all(sides[:3])
        assert not any(one & other for one, other in combinations(sides, 2))
        assert sorted(fold.train + fold.val + fold.test + fold.left_out) == known
        parts = dict.fromkeys(fold.train, "train") | dict.fromkeys(fold.val, "val") | dict.fromkeys(fold.test, "test")
        assert fold.parts() == parts
    inner_tests = [sorted(core for inner in fold.inner for core in inner.test) for fold in plan.folds]
    assert inner_tests == [sorted(fold.train + fold.val) if scheme == "nested" else [] for fold in plan.folds]
    assert {len(fold.inner) for fold in plan.folds} == {3 if scheme == "nested" else 0}
    if scheme == "leave_one_center_out":
        return
    # Folds differ by at most one patient, in total and in every stratum; validation has its share.
    strata = {}
    for name, rows in table.groupby("patient_id"):
        seen = Counter(rows["center"])
        strata[name] = (any(rows["label"]), min(center for center in seen if seen[center] == max(seen.values())))
    tested = [set(patient[list(fold.test)]) for fold in plan.folds]
    assert differ_by_one([*map(len, tested)])
    for stratum in set(strata.values()):
        assert differ_by_one([sum(strata[one] == stratum for one in fold) for fold in tested])
    for fold in plan.folds:
        watched, trained = (patient[list(part)].nunique() for part in (fold.val, fold.train))
        assert abs(watched - 0.2 * (watched + trained)) <= 1


def test_folds_follow_from_the_seed_and_equal_shares_take_turns():
    table = cores()
    for scheme in SCHEMES:
        plans = [plan_folds(table, drawn_splits(table), params(scheme, seed=seed)) for seed in (0, 0, 1)]
        assert plans[0] == plans[1] != plans[2]
    # Equal shares take turns.
    strata = {f"p{i}": (int(i > 4), "a") for i in range(8)}
    dealt = deal_groups(strata, [1 / 3] * 3, rng=np.random.default_rng(0))
    assert sorted(dealt.values()) == [0, 0, 0, 1, 1, 1, 2, 2]
    assert sorted(part for group, part in dealt.items() if strata[group] == (0, "a")) == [0, 0, 1, 1, 2]


CENTERS = pd.DataFrame(
    [
        *(("a0", "p0", "a", 0), ("a1", "p1", "a", 1), ("a2", "p2", "a", 0), ("a3", "p3", "a", 1), ("a4", "p9", "a", 1)),
        *(("b0", "p4", "b", 0), ("b1", "p5", "b", 1), ("b2", "p6", "b", 0), ("b3", "p7", "b", 1), ("b4", "p9", "b", 1)),
    ],
    columns=["core_id", "patient_id", "center", "label"],
)


RARE = pd.DataFrame({name: [f"p{i:02d}" for i in range(20)] for name in ("core_id", "patient_id")}).assign(center="a", label=0)
RARE.loc[:1, "label"] = 1
LEAVE_OUT = params("leave_one_center_out")


def test_a_patient_of_two_centers_is_tested_in_each_and_not_trained_on_there():
    first, second = plan_folds(CENTERS, {}, params("leave_one_center_out", val_share=0.3)).folds
    assert (first.name, first.test, first.left_out) == ("a", ("a0", "a1", "a2", "a3", "a4"), ("b4",))
    assert (second.name, second.test, second.left_out) == ("b", ("b0", "b1", "b2", "b3", "b4"), ("a4",))
    assert sorted(first.train + first.val) == ["b0", "b1", "b2", "b3"]
    assert sorted(second.train + second.val) == ["a0", "a1", "a2", "a3"]


def test_what_cannot_be_divided_is_refused():
    for table, settings_, message in (
        (CENTERS.assign(center="a"), LEAVE_OUT, "must have at least 2 centers .* got \\['a'\\]; use kfold"),
        (CENTERS.assign(center=["a", "", *"aaa", *"bbbbb"]), LEAVE_OUT, "center must be known .* got none for core 'a1'"),
        (CENTERS, params("nested", folds=10), "cross_validation.folds must be at most .* got 10 for 9 patients"),
        (CENTERS, params("nested", folds=3, inner_folds=7), "inner_folds must be at most .* got 7 for 6 patients"),
        (
            CENTERS.assign(label=[0] * 5 + [1] * 5),
            LEAVE_OUT,
            "training part of 'a' must hold cores of both classes, got 3 cores that all have label 1; use fewer folds",
        ),
        (
            CENTERS,
            params("leave_one_center_out", val_share=0.01),
            "validation part of 'a' must hold cores, got none of 4 patients; raise attention.cross_validation.val_share",
        ),
        (RARE, params("nested", folds=2, inner_folds=2), r"training part of 'fold0\.inner\d' must hold cores of both classes"),
    ):
        with pytest.raises(ValueError, match=message):
            plan_folds(table, {}, settings_)
