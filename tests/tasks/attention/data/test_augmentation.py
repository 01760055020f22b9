from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tiny_attention import (
    GRID,
    SIZE,
    algorithm_params,
    differing,
    make_data,
    make_examples,
    make_state,
    make_task,
    model_params,
    section,
    shake,
    training_params,
    weights,
)
from torch import Generator, Tensor

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.pipelines.training import nodes
from grpo_pipeline.pipelines.training.nodes import build_state
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionData, Pixels, read_pixels, region_cells
from grpo_pipeline.tasks.attention.build import build_task
from grpo_pipeline.tasks.attention.data.augmentation import AugmentationParams, augment, is_usable
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.params import ModelParams, RewardParams, SupervisedParams
from grpo_pipeline.tasks.attention.task import AttentionTask

CPU = torch.device("cpu")
ROWS = np.array([1, 2, 3, 5])
WILD = {
    "horizontal_flip": 0.5,
    "vertical_flip": 0.5,
    "rotation_degrees": 30.0,
    "translation": 0.1,
    "scale": [0.8, 1.2],
    "gain": 0.2,
    "gamma": 0.3,
    "speckle": 0.2,
    "blackout_patches": 2,
}


def params(**given: Any) -> AugmentationParams:
    return AugmentationParams(**given)


def task_with(examples: Examples | None = None, **given: Any) -> AttentionTask:
    return replace(make_task(examples), augmentation=params(**given))


def pixels(*, with_lesion: bool = True, rows: np.ndarray = ROWS) -> Pixels:
    return read_pixels(make_examples(), rows, device=CPU, with_lesion=with_lesion)


def generator(step: int = 0, seed: int = 0) -> Generator:
    return step_generator(seed, step, stream=Stream.BATCH)


def batch_of(task: AttentionTask, *, step: int = 0, seed: int = 0, rows: np.ndarray = ROWS) -> AttentionBatch:
    return task.make_batch(make_data(), rows, generator=generator(step, seed))


def same(a: AttentionBatch, b: AttentionBatch) -> list[str]:
    """Name the tensors that are bit-identical."""
    pairs = [(f.name, getattr(a, f.name), getattr(b, f.name)) for f in fields(a)]
    return [name for name, x, y in pairs if isinstance(x, Tensor) and torch.equal(x, y)]


def test_without_augmentation_a_training_batch_is_the_stored_one():
    task = make_task()
    names = same(batch_of(task), task.make_batch(make_data(), ROWS))
    assert {"images", "cells", "bag", "label", "involvement"} <= set(names)


def test_without_a_generator_nothing_is_augmented():
    plain, task = make_task(), task_with(**WILD)
    assert {"images", "cells", "bag"} <= set(same(plain.make_batch(make_data(), ROWS), task.make_batch(make_data(), ROWS)))


def test_the_batch_is_a_function_of_seed_and_step():
    task = task_with(**WILD)
    first = batch_of(task, step=7)
    assert set(same(first, batch_of(task, step=7))) == set(same(first, first))
    for other in (batch_of(task, step=8), batch_of(task, step=7, seed=1)):
        assert "images" not in same(first, other)
        assert "bag" not in same(first, other)
    before = torch.get_rng_state()
    batch_of(task)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_batch_is_derived_from_the_moved_masks():
    task = task_with(**WILD)
    moved = augment(pixels(with_lesion=False), task.augmentation, grid=GRID, points=3, generator=generator(3))
    batch = batch_of(task, step=3)
    assert torch.equal(batch.cells, region_cells(moved.region, GRID))
    inside = (moved.bag & moved.region).numpy()
    naive = inside.reshape(4, 4 * GRID, SIZE // (4 * GRID), 4 * GRID, SIZE // (4 * GRID)).mean((2, 4))
    np.testing.assert_allclose(batch.bag.numpy(), naive, atol=1e-7)
    seen = moved.images.float()[:, None]
    assert torch.equal(batch.images != 0, seen > 0) or bool(((batch.images != 0) <= (seen > 0)).all())
    assert not torch.equal(batch.cells, make_task().make_batch(make_data(), ROWS).cells)


def test_an_oracles_lesion_moves_along():
    task = task_with(horizontal_flip=1.0)
    shown = task.with_oracle(make_data())
    batch = task.make_batch(shown, ROWS, generator=generator())
    flipped = torch.as_tensor(make_examples().lesion[ROWS][:, :, ::-1].copy())
    assert torch.equal(batch.lesion_cells, region_cells(flipped, GRID))
    assert bool(flipped.any())


def test_a_core_that_would_lose_its_bag_or_its_room_stays_where_it_is():
    before = pixels()
    side = torch.zeros_like(before.bag)
    side[0, 12:20, 28:30] = True  # 2 pixels at the right edge of the region: a shift to the right loses them
    before = replace(before, bag=torch.where(torch.arange(4)[:, None, None] == 0, side, before.bag))
    shift = params(translation=0.4)
    for step in range(12):
        after = augment(before, shift, grid=GRID, points=3, generator=generator(step))
        assert bool((after.bag & after.region).flatten(1).any(1).all())
        assert bool((region_cells(after.region, GRID).sum(1) >= 3).all())
    crowded = [augment(before, shift, grid=GRID, points=14, generator=generator(step)) for step in range(12)]
    kept = torch.stack(
        [torch.stack([torch.equal(a.images[p], before.images[p]) * torch.ones(()) for p in range(4)]) for a in crowded]
    )
    assert float(kept.mean()) > 0.5  # most shifts by up to 0.4 leave fewer than 14 of the 16 cells: those cores are not moved
    assert all(bool((region_cells(a.region, GRID).sum(1) >= 14).all()) for a in crowded)


def test_a_core_that_had_no_bag_may_move():
    before = pixels()
    empty = replace(before, bag=torch.zeros_like(before.bag))
    assert is_usable(empty, empty, grid=GRID, points=3).tolist() == [True] * 4
    assert is_usable(before, empty, grid=GRID, points=3).tolist() == [False] * 4
    assert is_usable(before, before, grid=GRID, points=17).tolist() == [False] * 4


def test_only_grey_levels_change_without_moves():
    task = task_with(gain=0.3, gamma=0.3, speckle=0.2, blackout_patches=1)
    a, b = batch_of(task), batch_of(make_task())
    assert {"cells", "bag"} <= set(same(a, b))
    assert "images" not in same(a, b)
    assert task.repeats_prompts
    assert not task_with(translation=0.1).repeats_prompts


def test_the_reference_looks_at_the_augmented_images():
    """Stored logits belong to the stored images; with augmentation the reference is run on the batch."""
    task, data = task_with(**WILD), make_data()
    reference = task.build_policy(0)
    shake(reference)
    assert task.with_reference(data, reference) is data
    stale = AttentionData(data.examples, None, np.zeros((15, GRID * GRID), np.float32))
    batch = task.make_batch(stale, ROWS, generator=generator())
    assert batch.reference_logits is None
    assert task.make_batch(stale, ROWS).reference_logits is not None
    context = task.encode(reference, batch)
    sampled = task.sample(reference, context, 2, temperature=1.0, proposal="policy", generator=generator())
    scored = task.score_reference(reference, batch, sampled, temperature=1.0)
    torch.testing.assert_close(scored.logprobs, sampled.logprobs, atol=1e-5, rtol=0)
    stored = make_task().make_batch(data, ROWS)
    other = task.score_reference(reference, replace(stored, cells=batch.cells), sampled, temperature=1.0)
    assert float((other.logprobs - scored.logprobs).abs().max()) > 1e-3


def trained(task: AttentionTask, stop: int, resume: Any = None) -> tuple[Any, list[dict[str, Any]]]:
    """Train with a checkpoint every third step until ``stop`` rows are there; return the last checkpoint and the rows."""
    algorithm = algorithm_params(update_epochs=1)
    training = training_params(epochs=1, batch_size=1, log_every_steps=1, checkpoint_every_steps=3)
    data = make_data()
    state = build_state(algorithm, training, 0, task, data)
    start = NoCheckpoint("nothing yet") if resume is None else resume
    rows: list[dict[str, Any]] = []
    last = resume
    for some, saved in nodes.train(algorithm, training, "auto", task, data, state, start, {}):
        rows += [row for row in some if row["split"] == "train"]
        last = saved or last
        if len(rows) >= stop:
            break
    return last, rows


def test_a_resumed_run_shows_the_same_images():
    task = task_with(**WILD)
    whole, rows = trained(task, 8)
    broken, _ = trained(task, 4)
    resumed, rest = trained(task, 8, resume=broken)
    assert rest[0]["step"] == 3
    assert [row["supervised/loss"] for row in rest] == [row["supervised/loss"] for row in rows[3:]]
    assert differing(dict(whole.policy), dict(resumed.policy)) == []
    plain, _ = trained(make_task(), 8)
    assert differing(dict(whole.policy), dict(plain.policy)) != []


def test_the_fingerprint_names_the_augmentation():
    prints = [task.fingerprint(make_data()) for task in (make_task(), task_with(gain=0.1), task_with(gain=0.2))]
    assert "augmentation" not in prints[0]
    assert prints[1] != prints[2]


def test_a_frozen_encoder_is_refused():
    sections = (
        model_params(encoder="frozen"),
        RewardParams.model_validate(section("reward")),
        SupervisedParams.model_validate(section("supervised_loss")),
    )
    with pytest.raises(ValueError, match=r"attention.augmentation must be null with attention.model.encoder = frozen"):
        build_task(*sections, make_examples(), augmentation=params(gain=0.1))
    assert isinstance(sections[0], ModelParams)
    assert build_task(*sections, make_examples()).augmentation is None


def test_replay_is_refused_where_images_move():
    replay = {"replay": {"capacity": 8, "max_age_steps": 4, "share": 0.25, "importance_cap": 2.0}}
    with pytest.raises(ValueError, match=r"replay must be null where attention.augmentation moves the images"):
        make_state(task_with(rotation_degrees=5.0), make_data(), algorithm_params(**replay))
    recoloured = make_state(task_with(speckle=0.1), make_data(), algorithm_params(**replay))
    assert recoloured.replay is not None
    assert weights(recoloured.policy)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "augmentation must change something"),
        ({"scale": [1.0, 1.0]}, "augmentation must change something"),
        ({"scale": [1.2, 0.8]}, "scale must be"),
        ({"scale": [0.0, 1.0]}, "scale must be"),
        ({"horizontal_flip": 1.5}, "horizontal_flip"),
        ({"translation": 0.5}, "translation"),
        ({"gain": 1.0}, "gain"),
        ({"blackout_patches": -1}, "blackout_patches"),
        ({"rotation": 5.0}, "rotation"),
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        params(**wrong)
