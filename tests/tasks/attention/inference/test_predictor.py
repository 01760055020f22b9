"""A model used alone: the same numbers as the task gives, points that depend on the core alone, everything in image pixels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit, logit
from tiny_attention import make_class_examples, make_examples, make_task, shake
from tiny_predictor import CALIBRATION, make_predictor, make_weights, preprocessing

from grpo_pipeline.core.groups import replicate
from grpo_pipeline.core.storage.weights import weights_of
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.data.square_frame import Frame
from grpo_pipeline.tasks.attention.evaluation.point_rules import as_rollouts
from grpo_pipeline.tasks.attention.exported import answer_columns, answer_row
from grpo_pipeline.tasks.attention.inference.appearance import FEATURES, look, pooled_features
from grpo_pipeline.tasks.attention.inference.predictor import build_predictor
from grpo_pipeline.tasks.attention.inference.score_tables import score_row, score_table
from grpo_pipeline.tasks.attention.migrate_model import DELETED

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
    assert found.prob == pytest.approx(float(outcomes.class_logits[0].sigmoid().mean()), abs=1e-6)
    assert found.involvement == pytest.approx(float(outcomes.bag_probs[0].mean()), abs=1e-6)
    assert replicate(batch.label, 4).isnan().all()
    assert found.calibrated == pytest.approx(expit(0.5 * logit(found.probs.mean()) - 0.25), abs=1e-6)
    assert (found.heatmap.shape, found.image.shape, found.points.shape) == ((24, 32), (24, 32), (4, 3, 2))
    heatmaps = outcomes.mask_logits[0].sigmoid().numpy()
    np.testing.assert_allclose(found.heatmap, frame.map_to_image(heatmaps.mean(0)), atol=1e-5)  # of probabilities
    assert not np.allclose(found.heatmap, frame.map_to_image(heatmaps[0]), atol=1e-4)


@pytest.mark.parametrize("reads_mask", [None, "seeded"])
def test_a_model_with_folds_answers_by_the_mean_of_its_regressions(data_set, reads_mask):
    """A new image is in no fold, whatever its patient is called."""
    folded = {"class_decoder": {"kind": "statistics", "folds": 3, "region": True, "mask": reads_mask}}
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
    assert first.prob == pytest.approx(first.probs.mean())
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


def test_the_share_of_a_region_is_judged_only_where_somebody_has_drawn_one(data_set):
    """The model was trained with regions of three quarters of the image; a mask of all of it is unusual, none says nothing."""
    predictor = make_predictor(knows_inputs=True)
    data_set.save("region/all.png", np.ones((24, 32), bool))
    raw = data_set.open()
    drawn, none = (
        predictor.predict(raw, core(region_mask=mask), seed=0, n_samples=1).judgement for mask in ("region/all.png", "")
    )
    examples = [predictor._examples(raw, {**core(region_mask=mask), "lesion_mask": ""}) for mask in ("region/all.png", "")]
    assert np.array_equal(examples[0].region, examples[1].region)  # the points may fall in the same cells
    shares = [look(examples[0], 0, knows_region=knows)["size and region"][1] for knows in (True, False)]
    assert (shares[0], np.isnan(shares[1])) == (1.0, True)
    shape = predictor.familiarity.shapes["size and region"]
    alone = replace(predictor.familiarity, shapes={"size and region": shape})
    looks = [{"size and region": look(examples[0], 0, knows_region=knows)["size and region"][None]} for knows in (True, False)]
    assert "region's share" in alone.judge(looks[0]).why
    assert alone.judge(looks[1]).distance < alone.judge(looks[0]).distance
    vectors = {name: value[None] for name, value in look(examples[1], 0, knows_region=False).items()}
    batch = predictor.task.make_batch(AttentionData(examples[1], None), np.arange(1))
    vectors[FEATURES] = pooled_features(predictor.task.encode(predictor.policy, batch).features.detach())
    assert none.distance == pytest.approx(predictor.familiarity.judge(vectors).distance)
    assert drawn.distance >= none.distance


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
    assert one + two == pytest.approx(found.prob, abs=1e-6)  # the mean over the sets, as the prediction
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
    assert 0 < cyst < 1
    one = build_predictor(told, name="findings").predict(data_set.open(), core(), seed=0, n_samples=1)
    first = [one.classes[name] for name in columns]
    assert 1 - (1 - first[1]) * (1 - first[2]) == pytest.approx(found.probs[0], abs=1e-6)
    assert (cyst, calcified, mass) != tuple(first)  # the mean over the sets
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


def test_an_older_model_loads_where_it_did_without_what_is_deleted():
    weights = make_weights()
    older = dict(weights.config["model"]) | DELETED
    again = build_predictor(replace(weights, config={**weights.config, "model": older}), name="grpo")
    assert again.task.model == make_predictor().task.model
    assert again.policy.state_dict().keys() == weights.tensors.keys()
    for name in DELETED:
        config = {**weights.config, "model": older | {name: "another"}}
        with pytest.raises(ValueError, match=f"model grpo must be of this version, got {name}: .*; train again"):
            build_predictor(replace(weights, config=config), name="grpo")
