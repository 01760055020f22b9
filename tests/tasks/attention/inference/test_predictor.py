"""A model used alone: the same numbers as the task gives, points that depend on the core alone, everything in image pixels."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit, logit
from tiny_attention import make_class_examples, make_examples, make_task, shake
from tiny_predictor import CALIBRATION, make_predictor, make_weights, preprocessing

from grpo_pipeline.core.storage.weights import weights_of
from grpo_pipeline.core.types import replicate
from grpo_pipeline.pipelines.data.attention.prediction import spacing_notes
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.data.params import AggregateParams, Classes
from grpo_pipeline.tasks.attention.evaluation import as_rollouts
from grpo_pipeline.tasks.attention.exported import answer_columns
from grpo_pipeline.tasks.attention.inference.calibration import Calibration
from grpo_pipeline.tasks.attention.inference.frame import Frame
from grpo_pipeline.tasks.attention.inference.predictor import (
    CorePrediction,
    build_predictor,
    core_scores,
    frame_table,
    patient_table,
    point_rows,
    score_row,
    score_table,
)
from grpo_pipeline.tasks.attention.inference.request import answer_row
from grpo_pipeline.tasks.familiarity import Judgement

PREDICTOR = make_predictor()


def core(number: int = 0, **changes: str) -> dict[str, str]:
    name = f"c{number:02d}"
    row = {"core_id": name, "patient_id": "p", "image": f"images/{name}.png", "region_mask": f"region/{name}.png",
           "bag_mask": f"needle/{name}.png", "spacing_mm": ""}  # fmt: skip
    return row | changes


def test_scores_are_those_of_the_task_with_the_same_points(data_set):
    found = PREDICTOR.predict(data_set.open(), core(), seed=3, n_samples=4)
    examples = PREDICTOR._examples(data_set.open(), {**core(), "lesion_mask": ""})
    task = PREDICTOR.task
    batch = task.make_batch(AttentionData(examples, None), np.arange(1))
    context = task.encode(PREDICTOR.policy, batch)
    # Back from pixels to cells, then through the ordinary decoder.
    frame = Frame(24, 32, 32)
    square = torch.as_tensor(frame.to_square(found.points), dtype=torch.float32)[None]
    cells = ((square[..., 1] * 4).floor() * 4 + (square[..., 0] * 4).floor()).long()
    assert batch.cells[0][cells.flatten()].all()
    with torch.no_grad():
        outcomes = PREDICTOR.policy.decode(context.features, context.images, square, batch.bag)
    np.testing.assert_allclose(found.probs, outcomes.class_logits[0].sigmoid().numpy(), atol=1e-6)
    assert found.involvement == pytest.approx(float(outcomes.bag_probs[0, 0]), abs=1e-6)
    assert replicate(batch.label, 4).isnan().all()
    np.testing.assert_allclose(found.calibrated, expit(0.5 * logit(found.probs) - 0.25), atol=1e-6)
    assert (found.heatmap.shape, found.image.shape, found.points.shape) == ((24, 32), (24, 32), (4, 3, 2))
    first, last = (outcomes.mask_logits[0, number].sigmoid().numpy() for number in (0, -1))
    np.testing.assert_allclose(found.heatmap, frame.map_to_image(first), atol=1e-5)  # probabilities, with the first set
    assert not np.allclose(found.heatmap, frame.map_to_image(last), atol=1e-4)


@pytest.mark.parametrize("reads_mask", ["none", "seeded"])
def test_a_model_with_folds_answers_by_the_mean_of_its_regressions(data_set, reads_mask):
    """A new image is in no fold, whatever its patient is called."""
    folded = {"class_decoder": "statistics", "decoder_folds": 3, "reads_region": True, "reads_mask": reads_mask}
    predictor = make_predictor(model=folded)
    found = predictor.predict(data_set.open(), core(), seed=3, n_samples=4)
    task, policy = predictor.task, predictor.policy
    examples = predictor._examples(data_set.open(), {**core(), "lesion_mask": ""})
    batch = task.make_batch(AttentionData(examples, None), np.arange(1))
    context = task.encode(policy, batch)
    square = torch.as_tensor(Frame(24, 32, 32).to_square(found.points), dtype=torch.float32)[None]
    cells = ((square[..., 1] * 4).floor() * 4 + (square[..., 0] * 4).floor()).long()
    with torch.no_grad():
        heads = task.decode(policy, context, as_rollouts(cells), batch).heads
    assert heads.shape == (1, 4, 3)
    assert float(heads.std(2).min()) > 1e-3
    np.testing.assert_allclose(found.probs, heads.mean(2)[0].sigmoid().numpy(), atol=1e-6)


def test_points_follow_from_pixels_region_and_seed_and_not_from_names(data_set):
    raw = data_set.open()
    first, one = (PREDICTOR.predict(raw, core(0), seed=0, n_samples=sets) for sets in (8, 1))
    np.testing.assert_array_equal(one.points[0], first.points[0])  # nor on how many sets are drawn
    assert one.probs[0] == pytest.approx(first.probs[0], abs=1e-6)
    assert len({tuple(points.ravel()) for points in first.points}) > 1
    renamed = PREDICTOR.predict(raw, core(0, core_id="other", patient_id="q"), seed=0, n_samples=8)
    np.testing.assert_array_equal(first.points, renamed.points)
    for other in (PREDICTOR.predict(raw, core(0), seed=1, n_samples=8), PREDICTOR.predict(raw, core(1), seed=0, n_samples=8)):
        assert not np.array_equal(first.points, other.points)
    mask = data_set.open().read_mask("region/c00.png")
    mask[4, 4] = False  # a corner pixel: the cells stay
    data_set.save("region/c00.png", mask)
    assert not np.array_equal(first.points, PREDICTOR.predict(data_set.open(), core(0), seed=0, n_samples=8).points)
    mask = np.zeros((24, 32), bool)
    mask[:, 16:] = True
    data_set.save("region/c00.png", mask)
    points = PREDICTOR.predict(data_set.open(), core(), seed=0, n_samples=8).points
    # Cells are 8 pixels wide: centres of the right half at 20 and 28.
    assert set(np.unique(points[..., 0])) <= {20.0, 28.0}


def test_what_is_not_known_has_no_number_and_preprocessing_is_the_models_own(data_set):
    assert np.isnan(PREDICTOR.predict(data_set.open(), core(bag_mask=""), seed=0, n_samples=1).involvement)
    raw = data_set.open()
    assert PREDICTOR.predict(raw, core(spacing_mm="0.3 0.2"), seed=0, n_samples=1).spacing_mm == (0.3, 0.2)
    assert PREDICTOR.predict(raw, core(), seed=0, n_samples=1).spacing_mm is None
    none = {"method": "none", "reason": "one class", "n": 3, "positives": 0, "bins": 10}
    assert np.isnan(make_predictor(calibration=none).predict(data_set.open(), core(), seed=0, n_samples=2).calibrated).all()
    data_set.save("images/c00.png", np.asarray(np.arange(24 * 32).reshape(24, 32) % 50, np.uint8))
    raw = data_set.open()  # the model's own preprocessing counts
    plain, stretched = (make_predictor(intensity=how).predict(raw, core(), seed=0, n_samples=1) for how in ("dtype", "minmax"))
    assert (plain.image.max(), stretched.image.max()) == (49, 255)
    assert plain.probs[0] != stretched.probs[0]


GRADES = Classes(names=("gg0", "gg1", "gg2"), positive=("gg1", "gg2"), ordinal=True)


def test_a_model_of_classes_says_the_probability_of_each(data_set):
    told = make_weights(model={"examples": make_class_examples(GRADES)})
    found = build_predictor(told, name="grades").predict(data_set.open(), core(), seed=0, n_samples=3)
    zero, one, two = (found.classes[f"prob_{name}"] for name in GRADES.names)
    assert zero + one + two == pytest.approx(1)
    assert one + two == pytest.approx(found.probs[0], abs=1e-6)  # the first set's, as the prediction
    assert found.classes["expected_class"] == pytest.approx(one + 2 * two)
    columns = ["prob_gg0", "prob_gg1", "prob_gg2", "expected_class"]
    table = score_table([score_row(found, heatmap="a"), score_row(found.withheld(), heatmap="b")])
    assert list(table.columns[-4:]) == columns
    assert table.loc[1, columns].isna().all()
    assert list(answer_row(found, with_heatmap=False))[-4:] == columns
    assert [column.name for column in answer_columns(told.config)][4:8] == columns
    assert set(answer_row(found, with_heatmap=True)) == {column.name for column in answer_columns(told.config)}


def test_a_model_of_findings_says_the_probability_of_each(data_set):
    findings = Classes(names=("cyst", "calcified", "mass"), positive=("calcified", "mass"), several=True)
    told = make_weights(model={"examples": make_class_examples(findings)})
    assert Classes.model_validate(told.config["classes"]) == findings
    found = build_predictor(told, name="findings").predict(data_set.open(), core(), seed=0, n_samples=3)
    columns = [f"prob_{name}" for name in findings.names]
    cyst, calcified, mass = (found.classes[name] for name in columns)
    assert 1 - (1 - calcified) * (1 - mass) == pytest.approx(found.probs[0], abs=1e-6)
    assert 0 < cyst < 1
    assert list(score_table([score_row(found, heatmap="a")]).columns[-3:]) == columns
    assert [column.name for column in answer_columns(told.config)][4:7] == columns
    assert set(answer_row(found, with_heatmap=True)) == {column.name for column in answer_columns(told.config)}


def test_a_model_exported_before_there_were_classes_is_read(data_set):
    told = make_weights()
    assert "classes" not in told.config
    found = build_predictor(told, name="label").predict(data_set.open(), core(), seed=0, n_samples=1)
    assert found.classes == {}
    assert set(answer_row(found, with_heatmap=True)) == {column.name for column in answer_columns(told.config)}


def test_clinical_values_reach_a_model_that_reads_them(data_set):
    examples = make_examples()
    examples.table["age"] = np.linspace(50, 80, len(examples.table))
    examples = replace(examples, clinical=("age",))
    task = make_task(examples, clinical={"dropout": 0.0})
    policy = task.build_policy(0)
    shake(policy, scale=0.2)
    told = {"preprocessing": preprocessing(clinical=("age",)), "calibration": CALIBRATION}
    predictor = build_predictor(weights_of(policy, task.describe(policy) | told), name="clinical")
    raw = data_set.open()
    young, old, unknown = (
        predictor.predict(raw, core() | {"age": age}, seed=0, n_samples=1).probs[0] for age in (50.0, 80.0, np.nan)
    )
    assert len({young, old, unknown}) == 3


def test_a_model_that_cannot_be_used_alone_is_refused():
    for change, message in (
        ({"task": "dialogue"}, "must be one of the attention task, got 'dialogue'"),
        ({"preprocessing": None}, "must know its preprocessing and calibration, got one without them; train again"),
        ({"calibration": None}, "must know its preprocessing and calibration"),
        ({"preprocessing": {"image_size": 32}}, "must be of this version, got intensity: Field required; train again"),
    ):
        weights = make_weights()
        with pytest.raises(ValueError, match=f"model grpo {message}"):
            build_predictor(replace(weights, config={**weights.config, **change}), name="grpo")


def prediction(core_id="a", patient_id="p", probs=(0.2, 0.6), spacing=None, judgement=None) -> CorePrediction:
    points = np.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    return CorePrediction(core_id, patient_id, np.array(probs), np.array(probs) / 2, 0.3, points, np.zeros((8, 16), np.float32),
                          np.zeros((8, 16), np.uint8), judgement, spacing)  # fmt: skip


def test_a_score_is_that_of_the_first_set_its_spread_that_of_all_and_points_are_in_pixels_and_millimetres():
    row = score_row(prediction(spacing=(0.5, 0.25)), heatmap="a-file")
    assert (row["prob"], row["prob_calibrated"]) == (0.2, 0.1)
    # Mean (0.2 + 0.6) / 2 = 0.4, deviations of 0.2 on both sides.
    assert (row["prob_mean"], row["prob_std"]) == (pytest.approx(0.4), pytest.approx(0.2))
    assert (row["n_points"], row["n_sets"], row["height"], row["width"]) == (2, 2, 8, 16)
    assert (row["spacing_row_mm"], row["spacing_column_mm"], row["heatmap"]) == (0.5, 0.25, "a-file")
    rows = point_rows(prediction(spacing=(0.5, 0.25)))
    assert rows[["set", "point", "x", "y"]].values.tolist() == [[0, 0, 1, 2], [0, 1, 3, 4], [1, 0, 5, 6], [1, 1, 7, 8]]
    # x runs along columns, 0.25 mm apart; y along rows, 0.5 mm apart.
    assert rows["x_mm"].tolist() == [0.25, 0.75, 1.25, 1.75]
    assert rows["y_mm"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert point_rows(prediction())[["x_mm", "y_mm"]].isna().all(axis=None)


def test_points_of_both_labels_are_told_with_their_label():
    both = replace(prediction(), labels=np.array([[1.0, 0.0], [1.0, np.nan]]))
    both.points[1, 1] = np.nan
    assert "point_label" not in point_rows(prediction())
    rows = point_rows(both)
    assert rows[["set", "point", "point_label"]].values.tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 1]]
    assert answer_row(both, with_heatmap=False)["point_labels"] == [[1, 0], [1]]
    assert "point_labels" not in answer_row(prediction(), with_heatmap=False)


def test_a_patient_has_the_score_of_its_highest_core():
    cores = [("a", "p", 0.2), ("b", "p", 0.7), ("c", "q", 0.4), ("d", "", 0.9)]
    rows = [score_row(prediction(core, patient, (prob, 0.0)), heatmap=core) for core, patient, prob in cores]
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
    empty = ["prob", "prob_calibrated", "prob_mean", "prob_std", "involvement"]
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
    calibration = Calibration(method="platt", reason="", slope=0.5, intercept=0.1, n=1, positives=1, bins=10)
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
    assert table.loc["a", "prob"] == pytest.approx(sets[0])
    assert (table.loc["a", "prob_mean"], table.loc["a", "prob_std"]) == (pytest.approx(sets.mean()), pytest.approx(sets.std()))
    assert table.loc["a", "prob_calibrated"] == pytest.approx(expit(0.5 * logit(sets[0]) + 0.1))
    assert table.loc["b", "prob"] == pytest.approx(0.5)
    assert table["heatmap"].tolist() == ["h2", "h1"]
    # By max those of the frame that counts; the withheld one has none.
    assert table.loc["a", ["prob_x", "prob_y"]].tolist() == pytest.approx([0.4, 0.6] if how == "mean" else [0.1, 0.9])
    assert frame_table(rows)["prob_x"].tolist()[:3] == [0.7, 0.5, 0.1]
    # Of findings each its own highest.
    findings, probs = Classes(names=("x", "y"), positive=("y",), several=True), [frame.probs for frame in frames]
    found = score_table(core_scores(rows, probs, calibration, AggregateParams(core=how), findings)).set_index("core_id")
    assert found.loc["a", ["prob_x", "prob_y"]].tolist() == pytest.approx([0.4, 0.6] if how == "mean" else [0.7, 0.9])
    pd.testing.assert_frame_equal(found.drop(columns=["prob_x", "prob_y"]), table.drop(columns=["prob_x", "prob_y"]))
    assert table["outside"].tolist() == [True, False]
    assert table.loc["a", ["outside_why", "distance", "n_points"]].tolist() == ["texture", 2.5, 6]
    patients = patient_table(score_table(cores), calibration)
    assert patients["prob"][0] == pytest.approx((sets[0] + 0.5) / 2)
    assert patients["prob_calibrated"][0] == pytest.approx(expit(0.5 * logit((sets[0] + 0.5) / 2) + 0.1))
    assert patients["core_id"][0] == "b"
    assert core_scores(rows[:0], [], calibration, AggregateParams()) == []
    assert list(point_rows(frames[0]).columns[:2]) == ["core_id", "frame"]


def test_fields_in_millimetres_follow_the_spacing_of_the_image(data_set):
    examples = make_examples()
    examples = replace(examples, table=examples.table.assign(row_mm=0.2, column_mm=0.2))
    model = {"examples": examples, "class_decoder": "statistics", "policy_reads": "statistics", "field_mm": (0.5, 1.0, 2.0)}
    predictor, raw = make_predictor(model=model), data_set.open()
    found = {
        text: predictor.predict(raw, core(spacing_mm=text), seed=0, n_samples=1).probs[0] for text in ("0.2 0.2", "0.4 0.4", "")
    }
    assert len(set(found.values())) == 3
    plain = make_predictor(model=model | {"field_mm": None})
    checked = pd.DataFrame({"spacing_mm": ["0.2 0.2", "", ""]})
    [said] = spacing_notes(checked, predictor)
    assert said.startswith("2 of 3 images have no known spacing: the model's fields, in millimetres elsewhere, are a share")
    assert not [*spacing_notes(checked[:1], predictor), *spacing_notes(checked, plain)]
    assert found[""] == pytest.approx(plain.predict(raw, core(), seed=0, n_samples=1).probs[0], abs=1e-5)
