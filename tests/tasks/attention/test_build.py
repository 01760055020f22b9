import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_attention import make_batch, make_clinical_examples, make_data, make_examples, make_task, shake

from grpo_pipeline.core.objective.part import Weighed
from grpo_pipeline.tasks.attention.batch import AttentionData, patient_folds, shown_outlines
from grpo_pipeline.tasks.attention.build import join_features
from grpo_pipeline.tasks.attention.evaluation.point_rules import lesion_frequency
from grpo_pipeline.tasks.attention.frozen_features import FeatureSet, encode_examples, stream_features
from grpo_pipeline.tasks.attention.losses.heatmap import proportion_bce
from grpo_pipeline.tasks.attention.model.model import AttentionModel


def test_refuses_a_core_with_too_few_cells_and_a_cost_per_point_without_a_stop():
    examples = make_examples()
    for row in (4, 9):
        examples.region[row] = False
        examples.region[row, :8, :16] = True  # 8 x 16 pixels hold the centres of two cells
    message = (
        r"region of core 'c04' must cover at least attention.model.points = 3 cells of the 4 x 4 grid, got 2 "
        r"\(and 1 more such cores, such as \['c09'\]\); use fewer points, a smaller patch_size, a larger "
        "attention.data.image_size or region mask, or leave such cores out"
    )
    with pytest.raises(ValueError, match=message):
        make_task(examples)
    narrow = make_examples()
    narrow.region[4] = False
    narrow.region[4, 15:17] = True  # an elongated image: no centre of a cell lies in it, and fewer points would not help
    with pytest.raises(ValueError, match=r"core 'c04' must cover .* got 0; use a smaller patch_size, a larger attention.data"):
        make_task(narrow)
    assert make_task(examples, points=2).model.points == 2
    with pytest.raises(ValueError, match=r"attention.reward.points must be null with attention.model.policy.stop = null, got"):
        make_task(reward={"points": {"weight": 0.5}})
    assert make_task(reward={"points": {"weight": 0.5}}, policy={"stop": {"min_points": 2}}).rewards.points.weight == 0.5


def test_a_share_of_outlines_of_which_there_is_none_is_refused_whatever_the_weights():
    none = replace(make_examples(), lesion=np.zeros_like(make_examples().lesion))
    message = r"mask_share must show an outline of at least one training core, got 0.5, with 4 cores of which none .* it to null$"
    with pytest.raises(ValueError, match=message):
        make_task(none, supervised={"mask_share": 0.5})
    assert make_task(none, supervised={"mask_share": 0.0}).supervised.outline is None


EMPTY = FeatureSet(key="", values=None)  # nothing is stored
FROZEN = {"kind": "frozen"}


def test_stored_features_are_those_of_the_encoder():
    task, data = make_task(encoder={"tuning": FROZEN}), make_data()
    policy = task.build_policy(0)
    shake(policy, scale=0.1)
    stored = encode_examples(task, policy, data.examples, EMPTY)
    rows = np.array([9, 2])
    fresh = task.encode(policy, task.make_batch(data, rows)).features
    joined = join_features(data.examples, stored)
    assert (joined.examples, joined.features, joined.reference_logits) == (data.examples, stored.values, None)
    from_store = task.encode(policy, task.make_batch(joined, rows)).features
    torch.testing.assert_close(from_store, fresh, atol=1e-5, rtol=0)
    assert not torch.allclose(fresh[0], fresh[1], atol=1e-3)
    trained = make_task()
    assert encode_examples(trained, trained.build_policy(0), data.examples, EMPTY) == EMPTY  # its encoder changes


def test_features_are_made_again_for_another_encoder_or_other_data_alone():
    task, examples, calls = make_task(encoder={"tuning": FROZEN}), make_examples(), []
    first = encode_examples(task, task.build_policy(0), examples, EMPTY)
    policy = task.build_policy(0)
    policy.sam.net.vision_encoder.register_forward_hook(lambda *_: calls.append(1))
    shake(policy.policy)
    assert encode_examples(task, policy, examples, first) is first
    assert calls == []
    other_data = encode_examples(task, policy, make_examples(1), first)
    shake(policy.sam.net.vision_encoder, scale=1e-3)
    other_weights = encode_examples(task, policy, examples, first)
    assert len({first.key, other_data.key, other_weights.key}) == 3
    assert not np.array_equal(first.values, other_data.values)
    assert not np.array_equal(first.values, other_weights.values)


def test_chunks_are_the_features_in_order_and_leave_gradients_on(monkeypatch):
    task, examples = make_task(encoder={"tuning": FROZEN}), make_examples()
    policy = task.build_policy(0)
    whole = encode_examples(task, policy, examples, EMPTY)
    monkeypatch.setattr("grpo_pipeline.tasks.attention.frozen_features.BATCH_SIZE", 4)
    starts, parts = [], []
    for chunk in stream_features(task, policy, examples, EMPTY):
        assert torch.is_grad_enabled()
        assert (chunk.key, chunk.total) == (whole.key, 15)
        starts.append(chunk.start)
        parts.append(chunk.values)
        assert chunk.is_last == (chunk.start == 12)
    assert starts == [0, 4, 8, 12]
    np.testing.assert_allclose(np.concatenate(parts), whole.values, atol=1e-6, rtol=0)


def test_refuses_fields_that_do_not_fit_the_grid():
    def build(**changes: object) -> None:
        make_task(class_decoder={"kind": "statistics", **changes})

    where = "attention.model.class_decoder"
    middle = "must be odd, got 6; a field has a cell in its middle: use 5 or 7"
    for cells, said in (((3, 3), r"must ascend, got \[3, 3\]"), ((3, 6), middle)):
        with pytest.raises(ValueError, match=f"{where}.fields {said}"):
            build(fields=cells)
    for cells in ((9,), (3, 99)):
        with pytest.raises(ValueError, match=f"fields must be below 7 on a grid of 4 x 4 cells, got {cells[-1]}; such a"):
            build(fields=cells)
    build(fields=(1, 5, 11))  # 11 is a side of the default
    with pytest.raises(ValueError, match=r"class_decoder\.glimpse\.fields\n  Extra inputs are not permitted"):
        make_task(class_decoder={"fields": (3,)})


@pytest.mark.parametrize(
    ("weights", "mean"),
    [
        # Eight training cores, odd ones with cancer; row 3 has no involvement, so that its label counts. The rest by hand below.
        ({"heatmap": {"weight": 1.0}}, "involvement"),
        ({"heatmap": None, "needle": {"weight": 2.0}}, "label"),
        ({"heatmap": {"weight": 1.0}, "needle": {"weight": 1.0}, "mil": {"weight": 2.0, "share": 0.2}}, "mixed"),
        ({"heatmap": None}, "nothing"),
    ],
)
def test_an_untrained_heatmap_starts_at_what_its_losses_ask_for(weights, mean):
    examples = make_examples()
    table = examples.table.iloc[:8]
    involvement = [0.02 if x == 0 else x for x in table["involvement"].fillna(0.98)]  # clamped to 0.02 and 0.98
    means = {"involvement": sum(involvement) / 8, "label": 0.5, "nothing": 0.5}
    means["mixed"] = (means["involvement"] + 3 * 0.5) / 4
    task = make_task(supervised=weights)
    assert 1 / (1 + np.exp(-task.heatmap_level)) == pytest.approx(means[mean])
    policy = task.build_policy(0)
    plain = replace(task, heatmap_level=0.0).build_policy(0)
    batch = make_batch(task)
    points = torch.rand(4, 2, 3, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, wanted = (
            model.decode(model.encode(batch), batch.images, points, batch.bag, with_segmentation=True)
            for model in (policy, plain)
        )
    torch.testing.assert_close(found.mask_logits, wanted.mask_logits + task.heatmap_level)
    assert torch.equal(found.segmentation_logits, wanted.segmentation_logits)  # outlines teach that one
    told = json.loads(json.dumps(task.describe(policy)))
    assert AttentionModel.from_description(told).heatmap_level == task.heatmap_level
    before = {name: value for name, value in told.items() if name != "heatmap_level"}  # an export of before
    assert AttentionModel.from_description(before).heatmap_level == 0.0
    assert ("heatmap_level" in task.fingerprint(make_data())) == ("heatmap_level" in told) == (mean not in ("label", "nothing"))


def test_a_level_does_not_make_the_first_steps_flatten_the_image_features():
    """The loss asks for the mean alone: at the level its gradient to the encoder is small, at one half it is not."""
    task = make_task()
    batch = make_batch(task)
    points = torch.rand(4, 2, 3, 2, generator=torch.Generator().manual_seed(0))
    norms = []
    for level in (float(np.log(0.2 / 0.8)), 0.0):
        policy = replace(task, heatmap_level=level).build_policy(0)
        outcomes = policy.decode(policy.encode(batch), batch.images, points, batch.bag)
        wanted = torch.full_like(outcomes.bag_probs, 0.2)
        loss = proportion_bce(outcomes.bag_probs, wanted).mean()
        norms.append(torch.autograd.grad(loss, policy.sam.net.vision_encoder.neck.conv2.weight)[0].norm())
    assert norms[0] < 0.35 * norms[1]


def test_an_arm_has_reward_and_losses_of_its_own_under_the_names_of_the_parameters() -> None:
    """A run hands them to the task that is built, by the names of the documents; they must go together there, too."""
    task = make_task()
    reward = task.rewards.model_dump() | {"class": {"weight": 0.25}}
    loss = task.supervised.model_dump() | {"ridge": {"weight": 0.5}}
    own = task.with_sections({"reward": reward, "supervised_loss": loss}, path="attention.mine")
    assert (own.rewards.class_.weight, own.supervised.ridge.weight) == (0.25, 0.5)
    assert (own.model, own.rewards) == (task.model, task.rewards.model_copy(update={"class_": Weighed(weight=0.25)}))
    with pytest.raises(ValueError, match=r"attention.reward.points must be null with attention.model.policy.stop = null, got"):
        task.with_sections({"reward": reward | {"points": {"weight": 0.5}}}, path="attention.mine")
    with pytest.raises(ValueError, match=r"attention.mine.reward.class.weight: Input should be a valid number.*got 'much'"):
        task.with_sections({"reward": reward | {"class": {"weight": "much"}}}, path="attention.mine")
    for name in ("split", "rewards"):
        with pytest.raises(
            ValueError, match=rf"must hold sections among model, reward, supervised_loss, got {name}; an arm cannot"
        ):
            task.with_sections({name: {}}, path="attention.mine")


def test_cores_in_no_split_decide_nothing() -> None:
    """Rows 2 and 8, and the same with other labels, clinical values, outlines and patients: the built task is the same."""
    examples = make_clinical_examples()
    plain = examples.table.assign(split=["" if row in (2, 8) else split for row, split in enumerate(examples.table["split"])])
    other = plain.copy()
    other.loc[[2, 8], ["label", "involvement", "grade_group", "age", "psa"]] = [1, 0.99, 5.0, 900.0, 900.0]
    lesion = examples.lesion.copy()
    lesion[[2, 8]] = True
    found = []
    for one in (replace(examples, table=plain), replace(examples, table=other, lesion=lesion)):
        task = make_task(one, clinical={"dropout": 0.0}, supervised={"mask_share": 0.5, "heatmap_outline": {"weight": 1.0}})
        rows = [task.rows(AttentionData(one, None), split).tolist() for split in ("train", "val", "test")]
        shown = shown_outlines(one, np.arange(15), 1.0)
        folds = patient_folds(one, np.arange(15), 3)
        assert not shown[[2, 8]].any()
        assert folds[[2, 8]].tolist() == [-1, -1]
        frequency = lesion_frequency(AttentionData(one, None), np.array(rows[0]), task.grid).tolist()
        found.append((task.heatmap_level, task.clinical, rows, shown.tolist(), folds.tolist(), frequency))
    assert found[0] == found[1]
    assert sum(map(len, found[0][2])) == 13


def test_the_level_of_the_heatmap_is_the_mean_of_what_the_losses_ask_for() -> None:
    """Weights of 0.25 on involvement, an unknown one being the label, and 0.125 on labels; ends are clamped first."""
    table = make_examples().table[:8]
    share = table["involvement"].fillna(table["label"]).clip(0.02, 0.98).mean()
    weights = {"heatmap": {"weight": 0.25}, "needle": {"weight": 0.125}}
    mean = (0.25 * share + 0.125 * table["label"].mean()) / 0.375
    assert make_task(supervised=weights).heatmap_level == pytest.approx(np.log(mean / (1 - mean)))
    assert make_task(supervised={"heatmap": None}).heatmap_level == 0.0


def test_a_core_with_too_small_a_region_is_found_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_pipeline.tasks.attention.build.CHECKED_AT_ONCE", 4)
    examples = make_examples()
    examples.region[14] = False
    examples.region[14, 12, 12] = True
    with pytest.raises(ValueError, match="the region of core 'c14' must cover at least"):
        make_task(examples)


def test_a_field_of_exactly_the_side_from_which_on_it_is_the_whole_image_is_refused() -> None:
    """On a grid of 8 a field of 15 cells around a corner reaches the opposite one."""
    make_task(patch_size=4, class_decoder={"kind": "statistics", "fields": (3, 13)})
    with pytest.raises(ValueError, match="fields must be below 15 on a grid of 8 x 8 cells, got 15"):
        make_task(patch_size=4, class_decoder={"kind": "statistics", "fields": (3, 15)})
