"""Tables of predictions, with their sums worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from grpo_pipeline.tasks.attention.inference.predictor import CorePrediction, patient_table, point_rows, score_row, score_table
from grpo_pipeline.tasks.familiarity import Judgement


def prediction(core_id="a", patient_id="p", probs=(0.2, 0.6), spacing=None, judgement=None) -> CorePrediction:
    points = np.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    return CorePrediction(core_id, patient_id, np.array(probs), np.array(probs) / 2, 0.3, points, np.zeros((8, 16), np.float32),
                          np.zeros((8, 16), np.uint8), judgement, spacing)  # fmt: skip


def test_a_score_is_that_of_the_first_set_and_its_spread_that_of_all():
    row = score_row(prediction(spacing=(0.5, 0.25)), heatmap="a-file")
    assert (row["prob"], row["prob_calibrated"]) == (0.2, 0.1)
    # Mean (0.2 + 0.6) / 2 = 0.4, deviations of 0.2 on both sides.
    assert (row["prob_mean"], row["prob_std"]) == (pytest.approx(0.4), pytest.approx(0.2))
    assert (row["n_points"], row["n_sets"], row["height"], row["width"]) == (2, 2, 8, 16)
    assert (row["spacing_row_mm"], row["spacing_column_mm"], row["heatmap"]) == (0.5, 0.25, "a-file")


def test_points_are_in_pixels_and_millimetres_by_their_own_axis():
    rows = point_rows(prediction(spacing=(0.5, 0.25)))
    assert rows[["set", "point", "x", "y"]].values.tolist() == [[0, 0, 1, 2], [0, 1, 3, 4], [1, 0, 5, 6], [1, 1, 7, 8]]
    # x runs along columns, 0.25 mm apart; y along rows, 0.5 mm apart.
    assert rows["x_mm"].tolist() == [0.25, 0.75, 1.25, 1.75]
    assert rows["y_mm"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert point_rows(prediction())[["x_mm", "y_mm"]].isna().all(axis=None)


def test_a_patient_has_the_score_of_its_highest_core():
    cores = [("a", "p", 0.2), ("b", "p", 0.7), ("c", "q", 0.4), ("d", "", 0.9)]
    rows = [score_row(prediction(core, patient, (prob, 0.0)), heatmap=core) for core, patient, prob in cores]
    table = patient_table(score_table(rows))
    assert table.drop(columns="outside").values.tolist() == [["p", 2, 0.7, 0.35, "b"], ["q", 1, 0.4, 0.2, "c"]]
    assert table["outside"].isna().all()
    by_metric = pd.DataFrame(rows[:3]).groupby("patient_id")["prob"].max()
    assert table["prob"].tolist() == by_metric.tolist()


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
    empty = ["prob", "prob_calibrated", "prob_mean", "prob_std", "involvement"]
    assert [bool(np.isnan([row[name] for name in empty]).all()) for row in rows] == [True, False, False, True, False]
    assert rows[0]["n_points"] == 2
    table = patient_table(score_table(rows)).set_index("patient_id")
    assert table["cores"].tolist() == [3, 1, 1]
    assert table["outside"].tolist() == [2, 1, 0]
    assert table["core_id"].tolist() == ["b", "", "e"]
    assert table["prob"].isna().tolist() == [False, True, False]


def test_unknown_patients_have_no_row():
    assert patient_table(score_table([score_row(prediction(patient_id=""), heatmap="a")])).empty
