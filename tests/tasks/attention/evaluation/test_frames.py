import numpy as np
import pandas as pd
import pytest
from tiny_rows import NAN, ROWS

from grpo_pipeline.statistics.alignment import split_rules
from grpo_pipeline.tasks.attention.evaluation.frames import combine_frames
from grpo_pipeline.tasks.attention.evaluation.metrics import build_suite

ONES = np.ones((1, len(ROWS)))


def frames_of_cores():
    """Return rows of four cores with 1 to 4 frames under two rules, each number another one."""
    rng, parts = np.random.default_rng(0), []
    for rule in ("policy", "uniform"):
        for core, count in zip("badc", (3, 1, 4, 2), strict=True):
            facts = ROWS[ROWS["core_id"] == core].drop(columns="prob_shift").iloc[[0] * count]
            numbers = {name: rng.random(count) for name in ("prob", "heatmap_prob", "heatmap_top", "reward", "lesion_hit")}
            numbers["lesion_hit"][:1] = NAN
            named = {"rule": rule, "frame": [str(i) for i in range(count)], "reader_score": rng.integers(1, 6, count) * 1.0}
            classes = {"class": "abcd".index(core), "prob_x": numbers["prob"], "prob_y": 1 - numbers["prob"]}
            parts.append(facts.assign(**numbers, **named, **classes))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("how", ["mean", "max"])
def test_frames_become_one_row_of_their_core(how):
    rows = frames_of_cores().assign(over_frames=how, over_cores="max")
    found = combine_frames(rows.sample(frac=1, random_state=0)).set_index(["rule", "core_id"])
    assert len(found) == 8
    for (rule, core), row in found.iterrows():
        own = rows[(rows["rule"] == rule) & (rows["core_id"] == core)]
        for name in ("prob", "heatmap_prob", "heatmap_top"):
            assert row[name] == pytest.approx(getattr(np, how)(own[name].to_numpy())), name
        assert row["reward"] == pytest.approx(np.mean(own["reward"]))
        assert row["lesion_hit"] == pytest.approx(own["lesion_hit"].mean(), nan_ok=True)
        assert row["reader_score"] == own["reader_score"].max()
        assert row["class"] == own["class"].iloc[0]
        assert (row["prob_x"], row["prob_y"]) == (pytest.approx(row["prob"]), pytest.approx(1 - row["prob"]))
        assert (row["frames"], row["patient_id"], row["label"]) == (len(own), own["patient_id"].iloc[0], own["label"].iloc[0])
    assert combine_frames(ROWS) is ROWS
    findings = combine_frames(rows.rename(columns={"class": "findings"})).set_index(["rule", "core_id"])
    own = rows.groupby(["rule", "core_id"])
    for name in ("prob_x", "prob_y"):  # of several findings each by the rule
        assert findings[name].to_dict() == pytest.approx(own[name].agg(how).to_dict())
    assert findings["findings"].to_dict() == own["class"].first().to_dict()


def test_a_frame_without_a_probability_leaves_its_core_without_one():
    rows = frames_of_cores().assign(over_frames="mean", over_cores="max")
    rows.loc[1, "prob"] = NAN
    with pytest.raises(ValueError, match="prob in the predictions of grpo must be finite, got nan for core 'b'"):
        split_rules(rows, build_suite({}), arm="grpo", cluster="patient_id")


def test_a_comparison_counts_a_core_once_and_follows_the_rules_that_its_rows_name():
    """The same cores with one frame and with three of the same mean: every number but the largest is the same."""
    # Off the edges of the calibration bins, on which rounding decides.
    once = ROWS.drop(columns="prob_shift").assign(prob=ROWS["prob"] + 0.013, reader_score=[1, 4, 2, 3, 4, 5, 1, 2])
    spread = pd.concat([once.assign(frame=str(i), prob=once["prob"] + 0.05 * (i - 1)) for i in range(3)])
    metrics = build_suite({}).for_names(once.columns).metrics
    tables = {
        how: split_rules(rows, build_suite({}), arm="grpo", cluster="patient_id")["policy"]
        for how, rows in {
            "one": once,
            "mean": spread.assign(over_frames="mean", over_cores="max"),
            "max": spread.assign(over_frames="max", over_cores="max"),
            "mean of cores": spread.assign(over_frames="mean", over_cores="mean"),
        }.items()
    }
    values = {how: {name: m(rows, ONES)[0] for name, m in metrics.items()} for how, rows in tables.items()}
    for name in metrics:
        assert values["mean"][name] == pytest.approx(values["one"][name], nan_ok=True), name
        assert metrics[name].count(tables["mean"]) == metrics[name].count(tables["one"]), name
    assert values["max"]["brier"] == pytest.approx(((once["prob"] + 0.05 - once["label"]) ** 2).mean())
    # Patients p1 .4 (cancer), p2 .5, p3 .7 (cancer), p4 .25: 3 of 4 pairs; by the highest .6, .7, .9, .4: 3 of 4 as well.
    assert values["mean of cores"]["auroc_patient"] == 3 / 4
    flipped = tables["mean of cores"].assign(prob=[0.2, 0.6, 0.0, 0.7, 0.5, 0.9, 0.1, 0.4])
    assert metrics["auroc_patient"](flipped, ONES)[0] == 1
