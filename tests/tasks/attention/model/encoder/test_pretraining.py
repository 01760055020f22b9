"""Pretraining without labels: its loss is that of plain loops, it reads training images alone, arms begin with its encoder."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_attention import GRID, SIZE, make_data, make_examples, make_task, merge, section, training_params
from tiny_grid import tiny_bench, tiny_parameters

from grpo_pipeline.core.params import AlgorithmParams
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.pipelines.experiments.trials import setups
from grpo_pipeline.pipelines.experiments.trials.arms import ArmParams, resolve_arm
from grpo_pipeline.pipelines.experiments.trials.records import Trial
from grpo_pipeline.pipelines.experiments.trials.setup import open_trial, train_weights
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.nodes import build_state
from grpo_pipeline.tasks.attention.build import FeatureSet, encode_examples
from grpo_pipeline.tasks.attention.data.params import AugmentationParams
from grpo_pipeline.tasks.attention.model.encoder.pretraining import cell_pixels, draw_masks, reconstruction_loss
from grpo_pipeline.tasks.attention.params import MaskingParams

PATCH = SIZE // GRID
CONTROL = AlgorithmParams.model_validate(merge(section("supervised")["algorithm"], {"proposal": "none"}))
LOOP = training_params(epochs=2)


def opened(**model: Any) -> Any:
    return make_task(**model).open_stage("pretraining", {"masking": {"share": 0.5, "block": 2}})


def pretrained(data: Any, **model: Any) -> Any:
    return train_weights(CONTROL, LOOP, opened(**model), data, seed=3)


def test_the_loss_is_that_of_loops_over_masked_cells_and_pixels_and_teaches_no_other_cell() -> None:
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(3, 1, 12, 12, generator=generator, dtype=torch.float64)
    predicted = torch.randn(3, 9, 16, generator=generator, dtype=torch.float64, requires_grad=True)
    is_masked = torch.rand(3, 9, generator=generator) < 0.4
    errors = []
    for n in range(3):
        for cell in range(9):
            if not is_masked[n, cell]:
                continue
            top, left = 4 * (cell // 3), 4 * (cell % 3)
            pixels = [float(images[n, 0, top + y, left + x]) for y in range(4) for x in range(4)]
            mean = sum(pixels) / 16
            deviation = math.sqrt(sum((x - mean) ** 2 for x in pixels) / 15 + 1e-6)
            wanted = [(x - mean) / deviation for x in pixels]
            errors.append(sum((float(p.detach()) - w) ** 2 for p, w in zip(predicted[n, cell], wanted, strict=True)) / 16)
    loss = reconstruction_loss(predicted, images, is_masked)
    assert float(loss.detach()) == pytest.approx(sum(errors) / len(errors), rel=1e-12)
    loss.backward()
    has_gradient = predicted.grad.abs().sum(-1) > 0
    assert torch.equal(has_gradient, is_masked)


def test_the_same_number_of_cells_is_masked_in_every_image_by_blocks_and_another_step_masks_others() -> None:
    masks = [draw_masks(50, 8, MaskingParams(share=0.4, block=2), generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    assert set(masks[0].sum(1).tolist()) == {4 * 6}  # 0.4 of 16 blocks of 4 cells
    blocks = masks[0].reshape(50, 4, 2, 4, 2)
    assert torch.equal(blocks.amax((2, 4)), blocks.amin((2, 4)))
    assert float(masks[0].double().mean(0).min()) > 0.15  # every cell has its turn
    most = draw_masks(4, 4, MaskingParams(share=0.99, block=2), generator=torch.Generator())
    assert most.sum(1).tolist() == [12] * 4  # three of the four blocks
    few = draw_masks(4, 4, MaskingParams(share=0.001, block=2), generator=torch.Generator())
    assert few.sum(1).tolist() == [4, 4, 4, 4]


def test_pixels_of_masked_cells_are_not_seen_and_those_of_others_are() -> None:
    task, data = opened(), make_data()
    policy = task.build_policy(0)
    batch, other = (task.make_batch(data, np.arange(4), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert not torch.equal(batch.is_masked, other.is_masked)  # another step masks other cells
    before = task.encode(policy, batch).predicted
    for cells, changes in ((batch.is_masked, False), (~batch.is_masked, True)):
        shape = (4, 1, GRID, 1, GRID, 1)
        inside = cells.reshape(shape).expand(4, 1, GRID, PATCH, GRID, PATCH).reshape(4, 1, SIZE, SIZE)
        images = torch.where(inside, batch.cores.images + 1, batch.cores.images)
        after = task.encode(policy, replace(batch, cores=replace(batch.cores, images=images))).predicted
        assert torch.equal(before, after) != changes
        moved = cell_pixels(images, GRID) - cell_pixels(batch.cores.images, GRID)
        assert torch.equal(moved.abs().sum(-1) > 0, cells)


def test_it_learns_and_micro_batches_make_the_step_of_the_whole_batch() -> None:
    task, data, ends = opened(), make_data(), []
    for size in (None, 3):
        training = LOOP.model_copy(update={"micro_batch_size": size})
        state = build_state(CONTROL, training, 0, task, data)
        state = replace(state, optimizer=torch.optim.SGD(state.policy.parameters(), lr=0.05))
        batch = task.make_batch(data, np.arange(8), generator=torch.Generator().manual_seed(1))
        losses = []
        for _ in range(3):
            with quiet_nodes():
                state, metrics = StepRunner(task, CONTROL, training)(state, batch)
            losses.append(metrics["supervised/loss"])
        assert losses[2] < losses[1] < losses[0]
        ends.append([p.detach().clone() for p in state.policy.parameters()])
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=2e-6)


def poisoned(rows: slice) -> Any:
    """The data with other pixels and labels in these rows."""
    examples = make_examples()
    images, table = examples.images.copy(), examples.table.copy()
    images[rows] = 255 - images[rows] // 2
    table.loc[table.index[rows], ["label", "involvement", "grade_group"]] = [0, np.nan, np.nan]
    return make_data(replace(examples, images=images, table=table, digest="other"))


def test_images_of_other_splits_and_labels_change_no_weight_and_training_images_do() -> None:
    data = make_data()
    weights, rows = pretrained(data)
    assert {row["split"] for row in rows if "supervised/loss" in row} == {"train"}
    held_out = poisoned(slice(8, None))
    other, _ = pretrained(held_out)
    assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in weights.tensors.items())
    assert opened().fingerprint(held_out) == opened().fingerprint(data)
    unlabelled = poisoned(slice(0, None))
    unlabelled = make_data(replace(unlabelled.examples, images=data.examples.images))
    without, _ = pretrained(unlabelled)
    assert all(torch.equal(tensor, without.tensors[name]) for name, tensor in weights.tensors.items())
    shown, _ = pretrained(poisoned(slice(0, 1)))
    assert any(not torch.equal(tensor, shown.tensors[name]) for name, tensor in weights.tensors.items())
    assert opened().fingerprint(poisoned(slice(0, 1))) != opened().fingerprint(data)
    assert open_with(share=0.5, block=1).fingerprint(data) != opened().fingerprint(data)


@pytest.mark.parametrize("encoder", ["train", "frozen"])
def test_arms_begin_with_its_encoder_and_are_new_elsewhere(encoder: str) -> None:
    data, task = make_data(), make_task(encoder=encoder)
    weights, _ = pretrained(data, encoder=encoder)
    begun = opened(encoder=encoder).begin_with(weights)
    assert task.fingerprint(data).keys() ^ begun.fingerprint(data).keys() == {"start"}
    fresh, policy = task.build_policy(7), begun.build_policy(7)
    moved = 0
    for name, tensor in policy.state_dict().items():
        of_encoder = name.removeprefix("sam.net.vision_")
        expected = weights.tensors[of_encoder] if of_encoder != name else fresh.state_dict()[name]
        assert torch.equal(tensor, expected), name
        moved += not torch.equal(tensor, fresh.state_dict()[name])
    assert moved > 5
    frozen = {name for name, p in policy.named_parameters() if "vision_encoder" in name and not p.requires_grad}
    assert bool(frozen) == (encoder == "frozen")
    nothing = FeatureSet(key="", values=None)
    keys = {encode_examples(one, p, data.examples, nothing).key for one, p in ((task, fresh), (begun, policy))}
    assert len(keys) == (2 if encoder == "frozen" else 1)  # features of a frozen encoder are those of its new weights
    if encoder == "train":  # the policy's own encoder begins with the same weights
        own = opened(policy_encoder="own").begin_with(weights).build_policy(7)
        assert all(torch.equal(t, weights.tensors[f"encoder.{n}"]) for n, t in own.policy_encoder.state_dict().items())
    with pytest.raises(ValueError, match="must have the sizes of the pretraining that it begins with"):
        make_task(encoder_layers=3).open_stage("pretraining", {}).begin_with(weights).build_policy(0)


def test_it_is_trained_once_for_the_arms_of_a_seed_and_a_fold_on_the_fold_s_training_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, list[int]]] = []

    def counted(algorithm: Any, training: Any, task: Any, data: Any, *, seed: int) -> Any:
        seen.append((seed, task.rows(data, "train").tolist()))
        return train_weights(algorithm, training, task, data, seed=seed)

    monkeypatch.setattr(setups, "train_weights", counted)
    bench, loop = tiny_bench(), section("training", epochs=1)
    setup, examples = bench.setup, bench.examples
    stage = {"algorithm": CONTROL.model_dump(mode="json"), "training": loop, "masking": {"block": 2}}
    parameters = tiny_parameters() | {"pretraining": stage}
    models = {"algorithm": AlgorithmParams, "training": type(LOOP)} | setup.models

    def arm(base: str, **changes: Any) -> Any:
        return resolve_arm(ArmParams(base=base, set=changes), parameters, name=base, models=models, path="compare")

    first, second, plain = arm("supervised"), arm("grpo"), arm("grpo", pretraining=None)
    ids = examples.table["core_id"].tolist()
    fold = {core: "train" if row < 6 else "test" for row, core in enumerate(ids)}
    memory: Any = {}
    starts = []
    for one, trial in (
        (first, Trial("a", 0)), (plain, Trial("b", 0)), (second, Trial("c", 0)), (second, Trial("c", 1)),
        (second, Trial("c", 1, fold="f", split=fold)),
    ):  # fmt: skip
        found = open_trial(setup, one, trial, examples, memory)
        memory = found.memory
        starts.append(found.task.start)
    assert seen == [(0, list(range(8))), (1, list(range(8))), (1, list(range(6)))]
    assert starts[1] is None
    assert starts[0] is starts[2]
    with pytest.raises(ValueError, match="compare.set.model must hold what differs from the base, got null"):
        arm("grpo", model=None)
    # Where the environment has no such stage, an arm says what differs from the control and the arms' loop, as a run does.
    parameters = {**tiny_parameters(), "evaluation": {"control": "supervised"}}
    alone = arm("grpo", pretraining={"training": {"epochs": 5}, "masking": {"block": 2}}).sections["pretraining"]
    assert alone.algorithm == first.sections["algorithm"].model_copy(update={"proposal": "none"})
    assert alone.training == arm("grpo").sections["training"].model_copy(update={"epochs": 5})
    assert alone.model_extra == {"masking": {"block": 2}}
    assert "pretraining" not in arm("grpo").sections


LORA = {"encoder": "lora", "encoder_tuning": {"rank": 2, "alpha": 4.0, "targets": ["qkv"]}}


def open_with(**masking: Any) -> Any:
    return make_task().open_stage("pretraining", {"masking": masking})


def test_what_cannot_be_pretrained_is_refused() -> None:
    for make, message in (
        (lambda: make_task().open_stage("warm_start", {}), "attention.warm_start must be a stage of the task"),
        (lambda: make_task().open_stage("pretraining", {"maskin": {}}), "must hold sections among masking, target, got maskin"),
        (lambda: open_with(share=1.0), "attention.pretraining.masking.share: .*less than 1, got 1.0"),
        (lambda: open_with(block=3), "must divide the 4 cells of a side into at least 2, got 3"),
        (lambda: open_with(block=4), "into at least 2, got 4; use 1"),
        (lambda: make_task(**LORA).open_stage("pretraining", {}), "encoder must be train or frozen with .*pretraining, got lora"),
        (
            lambda: opened().check_algorithm(CONTROL.model_copy(update={"proposal": "uniform"})),
            "must have name = supervised and proposal = none, got supervised and uniform",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_a_stage_augments_as_it_says_or_as_the_arms_do_and_the_arms_as_they_did() -> None:
    data, rows = make_data(), np.arange(4)
    flips = AugmentationParams(vertical_flip=1.0)

    def images(task: Any) -> torch.Tensor:
        batch = task.make_batch(data, rows, generator=torch.Generator().manual_seed(2))
        return getattr(batch, "cores", batch).images

    plain = replace(make_task(), augmentation=None)
    upright = images(plain)
    sections: dict[str, Any] = {"masking": {"share": 0.5, "block": 2}, "target": {}}
    for arms, own, stage_flips in (
        (None, {"vertical_flip": 1.0}, True), (None, flips, True), (flips, None, False), (None, None, False),
    ):  # fmt: skip
        stage = replace(plain, augmentation=arms).open_stage("pretraining", sections | {"augmentation": own})
        torch.testing.assert_close(images(stage), upright.flip(2) if stage_flips else upright)
        assert ("augmentation" in stage.fingerprint(data)) == stage_flips
        begun = stage.begin_with(ModelWeights({}, {}))
        assert begun.augmentation == arms
    shared = replace(plain, augmentation=flips).open_stage("pretraining", sections)
    torch.testing.assert_close(images(shared), upright.flip(2))
