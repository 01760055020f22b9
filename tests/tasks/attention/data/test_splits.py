import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.data.split_params import SplitParams
from grpo_pipeline.tasks.attention.data.splits import GROUPED, split_cores
from grpo_pipeline.tasks.folds import group_strata


def params(*, seed=0, single_class="error", train=0.6, val=0.15, test=0.25):
    return SplitParams.model_validate(
        {"seed": seed, "fractions": {"train": train, "val": val, "test": test}, "single_class": single_class}
    )


def cores(*, groups=60, centers=3, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 8, groups)
    group = np.repeat(np.arange(groups), sizes)
    return pd.DataFrame(
        {
            "core_id": [f"c{i:04d}" for i in range(len(group))],
            "patient_id": [f"p{g:03d}" for g in group],
            "center": [f"center{g % centers}" for g in group],
            "label": (rng.random(len(group)) < 0.4).astype(int),
        }
    )


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), order=st.randoms(use_true_random=False))
def test_each_core_is_in_one_split_and_no_group_is_shared_in_any_order_of_the_rows(seed, order):
    table = cores(seed=seed)
    positions = list(range(len(table)))
    order.shuffle(positions)
    settings_ = params(seed=seed, single_class="allow")
    splits = split_cores(table, settings_)
    assert (
        split_cores(table.iloc[positions], settings_) == splits != split_cores(table, params(seed=seed + 1, single_class="allow"))
    )
    assert sorted(core for core_ids in splits.values() for core in core_ids) == table["core_id"].tolist()
    group_of = dict(zip(table["core_id"], table["patient_id"], strict=True))
    groups = {name: {group_of[core] for core in core_ids} for name, core_ids in splits.items()}
    assert groups["train"] & groups["val"] == groups["train"] & groups["test"] == groups["val"] & groups["test"] == set()


def test_every_stratum_gets_its_shares():
    table = cores(groups=240, centers=2)
    split_of = {core: name for name, core_ids in split_cores(table, params()).items() for core in core_ids}
    groups = table.assign(split=table["core_id"].map(split_of)).groupby("patient_id")
    frame = pd.DataFrame({"split": groups["split"].first(), "label": groups["label"].max(), "center": groups["center"].first()})
    for _, stratum in frame.groupby(["label", "center"]):
        counts = stratum["split"].value_counts()
        for name, share in {"train": 0.6, "val": 0.15, "test": 0.25}.items():
            assert abs(counts.get(name, 0) - share * len(stratum)) <= 2
    counts = frame["split"].value_counts()
    assert counts.to_dict() == {"train": 144, "test": 60, "val": 36}
    # The stratum of a patient is any positive core and the most frequent centre.
    rows = [("a", "x", 0), ("a", "y", 1), ("a", "y", 0), ("b", "z", 0), ("b", "x", 0)]
    table = pd.DataFrame(rows, columns=["patient_id", "center", "label"])
    assert group_strata(table.rename(columns=GROUPED)) == {"a": (1, "y"), "b": (0, "x")}


def test_splits_of_the_manifest_are_taken():
    table = cores(groups=6)
    table["label"] = np.arange(len(table)) % 2
    table["split"] = table["patient_id"].map(
        dict(zip(sorted(set(table["patient_id"])), ["train", "test", "val"] * 2, strict=True))
    )
    splits = split_cores(table, params(single_class="allow"))
    for name in splits:
        assert splits[name] == table.loc[table["split"] == name, "core_id"].tolist()


def simple(splits_and_labels):
    rows = [(f"c{i}", f"p{i}", "a", label, split) for i, (split, label) in enumerate(splits_and_labels)]
    return pd.DataFrame(rows, columns=["core_id", "patient_id", "center", "label", "split"])


BOTH = [("train", 0), ("train", 1), ("val", 0), ("val", 1), ("test", 0), ("test", 1)]


@pytest.mark.parametrize("absent", [("val",), ("test",), ("val", "test")])
def test_a_split_that_is_not_named_is_drawn_from_train(absent, caplog):
    table = cores(groups=200, centers=2)
    named = {f"p{g:03d}": "train" if g % 4 else ("test" if "val" in absent else "val") for g in range(200)}
    if len(absent) == 2:
        named = dict.fromkeys(named, "train")
    found = split_cores(table.assign(split=table["patient_id"].map(named)), params())
    split_of = {core: name for name, ids in found.items() for core in ids}
    now = table.assign(now=table["core_id"].map(split_of), was=table["patient_id"].map(named))
    assert now.groupby("patient_id")["now"].nunique().max() == 1
    assert (now["now"] == now["was"])[now["was"] != "train"].all()  # what is named stays
    patients = now[now["was"] == "train"].groupby("patient_id")["now"].first().value_counts(normalize=True)
    whole = 0.6 + sum(getattr(params().fractions, name) for name in absent)
    for name in absent:
        assert patients[name] == pytest.approx(getattr(params().fractions, name) / whole, abs=0.02)
        assert f"no row is named {name}: " in caplog.text
    assert set(patients.index) == {"train", *absent}
    assert split_cores(table.assign(split=table["patient_id"].map(named)).iloc[::-1], params()) == found


def test_what_cannot_be_split_is_refused():
    for rows, changes, message in (
        (simple(BOTH[1:]), {}, "split 'train' must hold cores of both classes, got 1 cores that all have label 1"),
        (simple(BOTH[:5]), {}, "split 'test' must hold .* got 1 cores that all have label 0; .*single_class: allow"),
        (simple(BOTH[1:]), {"single_class": "allow"}, "split 'train' must hold cores of both classes((?!single_class).)*$"),
        (simple(BOTH[:2] + BOTH[4:]), {}, "split 'val' must hold cores, got none"),
        (simple(BOTH).assign(patient_id=[*"012340"]), {}, r"patient '0' must be in one split, got \['test', 'train'\]"),
        (simple(BOTH[:2]).drop(columns="split"), {}, "must hold at least 3 groups .* got 2"),
    ):
        assert split_cores(simple(BOTH[:5]), params(single_class="allow"))["test"] == ["c4"]
        with pytest.raises(ValueError, match=message):
            split_cores(rows, params(**changes))


def test_a_class_that_a_split_lacks_is_warned_of_and_refused_in_train(caplog):
    classes = Classes(names=("normal", "benign", "malignant"), positive=("malignant",))
    rows = [*BOTH, ("train", 0), ("test", 0)]
    table = simple(rows).assign(**{"class": [0, 2, 0, 2, 0, 2, 1, 1]})
    assert split_cores(table, params(), classes=classes)["val"] == ["c2", "c3"]
    (told,) = [record.getMessage() for record in caplog.records]
    assert "split 'val' must hold cores of every class, got none of 'benign', which 2 patients of all have: its metrics" in told
    caplog.clear()
    with pytest.raises(ValueError, match="split 'train' must hold cores of every class, got none of 'benign', which 1 patients"):
        split_cores(table.drop(index=6), params(), classes=classes)
    assert split_cores(table, params())  # a label alone asks for nothing


def test_a_finding_that_all_cores_of_a_split_have_is_warned_of_and_refused_in_train(caplog):
    findings = Classes(names=("cyst", "mass"), positive=("mass",), several=True)
    table = simple(BOTH)
    assert table["split"].tolist() == ["train", "train", "val", "val", "test", "test"]
    assert table["label"].tolist() == [0, 1] * 3
    assert split_cores(table.assign(findings=[0, 3, 1, 3, 1, 2]), params(), classes=findings)
    (told,) = [record.getMessage() for record in caplog.records]
    assert "split 'val' must hold cores with and without each finding, got all with 'cyst', which 4 patients" in told
    for bits, got in (([1, 3, 0, 3, 0, 3], "all with 'cyst'"), ([0, 2, 0, 3, 0, 3], "none with 'cyst'")):
        with pytest.raises(ValueError, match=f"split 'train' must hold cores with and without each finding, got {got}, which"):
            split_cores(table.assign(findings=bits), params(), classes=findings)
