from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logit

from grpo_pipeline.tasks.attention.data.aggregate_params import AggregateParams
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.inference.calibration import Calibration
from grpo_pipeline.tasks.attention.inference.predictor import CorePrediction
from grpo_pipeline.tasks.attention.inference.score_tables import (
    core_scores,
    frame_table,
    patient_table,
    point_rows,
    score_row,
    score_table,
)
from grpo_pipeline.tasks.familiarity import Judgement


def prediction(core_id="a", patient_id="p", probs=(0.2, 0.6), spacing=None, judgement=None) -> CorePrediction:
    points = np.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    return CorePrediction(core_id, patient_id, np.array(probs), sum(probs) / len(probs) / 2, 0.3, points,
                          np.zeros((8, 16), np.float32), np.zeros((8, 16), np.uint8), judgement, spacing)  # fmt: skip


def test_a_score_is_the_mean_of_the_sets_and_points_are_in_pixels_and_millimetres():
    row = score_row(prediction(spacing=(0.5, 0.25)), heatmap="a-file")
    # Mean (0.2 + 0.6) / 2 = 0.4, deviations of 0.2 on both sides.
    assert (row["prob"], row["prob_std"], row["prob_calibrated"]) == pytest.approx((0.4, 0.2, 0.2))
    assert (row["n_points"], row["n_sets"], row["height"], row["width"]) == (2, 2, 8, 16)
    assert (row["spacing_row_mm"], row["spacing_column_mm"], row["heatmap"]) == (0.5, 0.25, "a-file")
    rows = point_rows(prediction(spacing=(0.5, 0.25)))
    assert rows[["set", "point", "x", "y"]].values.tolist() == [[0, 0, 1, 2], [0, 1, 3, 4], [1, 0, 5, 6], [1, 1, 7, 8]]
    # x runs along columns, 0.25 mm apart; y along rows, 0.5 mm apart.
    assert rows["x_mm"].tolist() == [0.25, 0.75, 1.25, 1.75]
    assert rows["y_mm"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert point_rows(prediction())[["x_mm", "y_mm"]].isna().all(axis=None)


def test_a_patient_has_the_score_of_its_highest_core():
    cores = [("a", "p", 0.2), ("b", "p", 0.7), ("c", "q", 0.4), ("d", "", 0.9)]
    rows = [score_row(prediction(core, patient, (prob, prob)), heatmap=core) for core, patient, prob in cores]
    table = patient_table(score_table(rows))
    assert table.drop(columns="outside").values.tolist() == [["p", 2, 0.7, 0.35, "b"], ["q", 1, 0.4, 0.2, "c"]]
    assert table["outside"].isna().all()
    by_metric = pd.DataFrame(rows[:3]).groupby("patient_id")["prob"].max()
    assert table["prob"].tolist() == by_metric.tolist()
    assert patient_table(score_table([score_row(prediction(patient_id=""), heatmap="a")])).empty


def test_a_core_without_a_score_counts_and_a_patient_without_any_has_none():
    far, near = Judgement(2.5, "texture 2.5 times the limit"), Judgement(0.5, "")
    given = [
        ("a", "p", far, True),
        ("b", "p", near, False),
        ("c", "p", far, False),
        ("d", "q", far, True),
        ("e", "r", near, False),
    ]
    cores = [(prediction(core, patient, (0.6, 0.2), judgement=judgement), held) for core, patient, judgement, held in given]
    rows = [score_row(core.withheld() if held else core, heatmap="") for core, held in cores]
    assert [(row["outside"], row["outside_why"], row["distance"]) for row in rows[:2]] == [(True, far.why, 2.5), (False, "", 0.5)]
    empty = ["prob", "prob_calibrated", "prob_std", "involvement"]
    assert [bool(np.isnan([row[name] for name in empty]).all()) for row in rows] == [True, False, False, True, False]
    assert rows[0]["n_points"] == 2
    table = patient_table(score_table(rows)).set_index("patient_id")
    assert table["cores"].tolist() == [3, 1, 1]
    assert table["outside"].tolist() == [2, 1, 0]
    assert table["core_id"].tolist() == ["b", "", "e"]
    assert table["prob"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize("how", ["mean", "max"])
def test_a_core_is_combined_from_the_point_sets_of_its_frames(how):
    far, near = Judgement(2.5, "texture"), Judgement(0.5, "")
    calibration = Calibration(method="platt", reason="", slope=0.5, intercept=0.1, n=1, positives=1, bins=10, n_samples=2)
    given = [("a", (0.2, 0.6), near), ("b", (0.5, 0.1), near), ("a", (0.4, 0.3), far), ("a", (0.9, 0.9), far)]
    frames = [
        replace(prediction(core, "p", probs, judgement=judgement), frame=str(i))
        for i, (core, probs, judgement) in enumerate(given)
    ]
    of_frames = [(0.7, 0.3), (0.5, 0.5), (0.1, 0.9), (0.6, 0.4)]
    frames = [replace(f, classes={"prob_x": x, "prob_y": y}) for f, (x, y) in zip(frames, of_frames, strict=True)]
    frames[3] = frames[3].withheld()
    rows = [score_row(frame, heatmap=f"h{i}") for i, frame in enumerate(frames)]
    assert frame_table(rows)["frame"].tolist() == ["0", "1", "2", "3"]
    cores = core_scores(rows, [frame.probs for frame in frames], calibration, AggregateParams(core=how))
    table = score_table(cores).set_index("core_id")
    sets = getattr(np, how)([[0.2, 0.6], [0.4, 0.3]], axis=0)
    assert (table.loc["a", "prob"], table.loc["a", "prob_std"]) == (pytest.approx(sets.mean()), pytest.approx(sets.std()))
    assert table.loc["a", "prob_calibrated"] == pytest.approx(expit(0.5 * logit(sets.mean()) + 0.1))
    assert table.loc["b", "prob"] == pytest.approx(0.3)
    assert table["heatmap"].tolist() == ["h0", "h1"]  # of the higher mean, 0.4 against 0.35
    # By max those of the frame that counts; the withheld one has none.
    assert table.loc["a", ["prob_x", "prob_y"]].tolist() == pytest.approx([0.4, 0.6] if how == "mean" else [0.7, 0.3])
    assert frame_table(rows)["prob_x"].tolist()[:3] == [0.7, 0.5, 0.1]
    # Of findings each its own highest.
    findings, probs = Classes(names=("x", "y"), positive=("y",), several=True), [frame.probs for frame in frames]
    found = score_table(core_scores(rows, probs, calibration, AggregateParams(core=how), findings)).set_index("core_id")
    assert found.loc["a", ["prob_x", "prob_y"]].tolist() == pytest.approx([0.4, 0.6] if how == "mean" else [0.7, 0.9])
    pd.testing.assert_frame_equal(found.drop(columns=["prob_x", "prob_y"]), table.drop(columns=["prob_x", "prob_y"]))
    assert table["outside"].tolist() == [True, False]
    assert table.loc["a", ["outside_why", "distance", "n_points"]].tolist() == ["texture", 2.5, 6]
    patients = patient_table(score_table(cores), calibration)
    assert patients["prob"][0] == pytest.approx((sets.mean() + 0.3) / 2)
    assert patients["prob_calibrated"][0] == pytest.approx(expit(0.5 * logit((sets.mean() + 0.3) / 2) + 0.1))
    assert patients["core_id"][0] == "a"
    assert core_scores(rows[:0], [], calibration, AggregateParams()) == []
    assert list(point_rows(frames[0]).columns[:2]) == ["core_id", "frame"]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("how", ["mean", "max"])
def test_a_withheld_frame_at_any_place_leaves_the_others_what_they_are(how, place):
    """Means of 0.4 and 0.7 and those of the withheld one: heatmap and classes are of the frame of 0.7."""
    calibration = Calibration(method="platt", reason="", slope=0.5, intercept=0.1, n=1, positives=1, bins=10, n_samples=2)
    given = [((0.2, 0.6), 0.3, "low"), ((0.6, 0.8), 0.8, "high")]
    given.insert(place, ((0.9, 0.9), 0.5, "withheld"))
    frames = [replace(prediction("a", "p", probs), frame=str(i), classes={"prob_x": x}) for i, (probs, x, _) in enumerate(given)]
    frames[place] = frames[place].withheld()
    rows = [score_row(frame, heatmap=name) for frame, (_, _, name) in zip(frames, given, strict=True)]
    (core,) = core_scores(rows, [frame.probs for frame in frames], calibration, AggregateParams(core=how))
    sets = getattr(np, how)([[0.2, 0.6], [0.6, 0.8]], axis=0)
    assert (core["prob"], core["prob_std"], core["heatmap"]) == (pytest.approx(sets.mean()), pytest.approx(sets.std()), "high")
    assert core["prob_x"] == pytest.approx(0.55 if how == "mean" else 0.8)
