import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.ndimage import affine_transform
from tiny_attention import (
    GRID,
    SIZE,
    algorithm_params,
    make_data,
    make_examples,
    make_state,
    make_task,
    model_params,
    section,
    shake,
)
from torch import Generator, Tensor

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.tasks.attention.affine_moves import Moves, draw_moves, move
from grpo_pipeline.tasks.attention.augmentation import augment
from grpo_pipeline.tasks.attention.augmentation_params import AugmentationParams
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionData, region_cells
from grpo_pipeline.tasks.attention.build import build_task
from grpo_pipeline.tasks.attention.grey_changes import recolour
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.rewards.params import RewardParams
from grpo_pipeline.tasks.attention.stored_pixels import Pixels, read_pixels
from grpo_pipeline.tasks.attention.task import AttentionTask

ROWS = np.array([1, 2, 3, 5])
FLIPS = {"horizontal_flip": 0.5}
GEOMETRY = {"rotation_degrees": 30.0, "translation": 0.1, "scale": [0.8, 1.2]}
WILD = FLIPS | GEOMETRY | {"gain": 0.2, "gamma": 0.3, "speckle": 0.2}


def params(**given: Any) -> AugmentationParams:
    return AugmentationParams(**given)


def task_with(**given: Any) -> AttentionTask:
    return replace(make_task(), augmentation=params(**given))


def pixels(*, with_lesion: bool = True, rows: np.ndarray = ROWS) -> Pixels:
    shown = np.ones(len(rows), dtype=bool) if with_lesion else None
    return read_pixels(make_examples(), rows, device=torch.device("cpu"), with_lesion=with_lesion, shown=shown)


def generator(step: int = 0, seed: int = 0) -> Generator:
    return step_generator(seed, step, stream=Stream.BATCH)


def batch_of(task: AttentionTask, step: int = 0, seed: int = 0) -> AttentionBatch:
    return task.make_batch(make_data(), ROWS, generator=generator(step, seed))


def same(a: AttentionBatch, b: AttentionBatch) -> set[str]:
    """Name the tensors that are bit-identical."""
    pairs = [(f.name, getattr(a, f.name), getattr(b, f.name)) for f in fields(a)]
    return {name for name, x, y in pairs if isinstance(x, Tensor) and torch.equal(x, y)}


def test_a_batch_is_a_function_of_seed_and_step_and_plain_without_a_generator():
    plain, task = make_task().make_batch(make_data(), ROWS), task_with(**WILD)
    assert {"images", "cells", "bag"} <= same(plain, task.make_batch(make_data(), ROWS))
    before = torch.get_rng_state()
    first = batch_of(task, 7)
    assert torch.equal(torch.get_rng_state(), before)
    assert same(first, batch_of(task, 7)) == same(first, first)
    for other in (batch_of(task, 8), batch_of(task, 7, seed=1), plain):
        assert not {"images", "bag"} & same(first, other)
    recoloured = task_with(gain=0.3, gamma=0.3, speckle=0.2)
    assert {"cells", "bag"} <= same(batch_of(recoloured), plain)
    assert "images" not in same(batch_of(recoloured), plain)
    assert (recoloured.repeats_prompts, task_with(translation=0.1).repeats_prompts) == (True, False)


def test_cells_bag_and_an_oracles_lesion_are_derived_from_the_moved_masks():
    task = task_with(**WILD)
    moved = augment(pixels(with_lesion=False), task.augmentation, grid=GRID, points=3, generator=generator(3))
    batch = batch_of(task, 3)
    assert torch.equal(batch.cells, region_cells(moved.region, GRID))
    inside = (moved.bag & moved.region).numpy()
    naive = inside.reshape(4, 4 * GRID, SIZE // (4 * GRID), 4 * GRID, SIZE // (4 * GRID)).mean((2, 4))
    np.testing.assert_allclose(batch.bag.numpy(), naive, atol=1e-7)
    assert not (batch.images[moved.images[:, None] == 0] != 0).any()
    flip = task_with(horizontal_flip=1.0)
    shown = flip.make_batch(flip.with_oracle(make_data()), ROWS, generator=generator())
    flipped = torch.as_tensor(make_examples().lesion[ROWS][:, :, ::-1].copy())
    assert torch.equal(shown.lesion_cells, region_cells(flipped, GRID))
    assert flipped.any()


def test_a_core_that_would_lose_its_bag_or_its_room_stays_where_it_is():
    before = pixels()
    before.bag[0] = False
    before.bag[0, 12:20, 28:30] = True  # 2 pixels at the right edge of the region: a shift to the right loses them
    before.bag[2] = False  # has none to lose
    shift, n_moved = params(translation=0.4), {3: torch.zeros(4), 14: torch.zeros(4)}
    for points, moved in n_moved.items():
        for step in range(24):
            after = augment(before, shift, grid=GRID, points=points, generator=generator(step))
            assert (after.bag & after.region).flatten(1).any(1).tolist() == [True, True, False, True]
            assert bool((region_cells(after.region, GRID).sum(1) >= points).all())
            moved += (after.images != before.images).flatten(1).any(1)
    assert 0 < n_moved[3][0] < n_moved[3][2] == 24
    assert bool((n_moved[14] < 12).all())  # most shifts by up to 0.4 leave fewer than 14 of the 16 cells


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
    sampled = task.sample(reference, task.encode(reference, batch), 2, temperature=1.0, proposal="policy", generator=generator())
    scored = task.score_reference(reference, batch, sampled, temperature=1.0)
    torch.testing.assert_close(scored.logprobs, sampled.logprobs, atol=1e-5, rtol=0)
    stored = replace(make_task().make_batch(data, ROWS), cells=batch.cells)
    other = task.score_reference(reference, stored, sampled, temperature=1.0)
    assert float((other.logprobs - scored.logprobs).abs().max()) > 1e-3


def test_augmentation_refuses_what_does_not_go_with_it_and_is_in_the_fingerprint():
    sections = (
        model_params(encoder={"tuning": {"kind": "frozen"}}),
        RewardParams.model_validate(section("reward")),
        SupervisedParams.model_validate(section("supervised_loss")),
    )
    with pytest.raises(ValueError, match=r"attention.augmentation must be null with attention.model.encoder.tuning.kind = froz"):
        build_task(*sections, make_examples(), augmentation=params(gain=0.1))
    assert build_task(*sections, make_examples()).augmentation is None
    replay = algorithm_params(replay={"capacity": 8, "max_age_steps": 4, "share": 0.25, "importance_cap": 2.0})
    with pytest.raises(ValueError, match=r"replay must be null where attention.augmentation moves the images"):
        make_state(task_with(rotation_degrees=5.0), make_data(), replay)
    assert make_state(task_with(speckle=0.1), make_data(), replay).replay is not None
    prints = [task.fingerprint(make_data()) for task in (make_task(), task_with(gain=0.1), task_with(gain=0.2))]
    assert "augmentation" not in prints[0]
    assert prints[1] != prints[2]


def test_wrong_parameters_are_refused():
    for wrong, message in (
        ({"scale": [1.2, 0.8]}, "scale must be"),
        ({"scale": [0.0, 1.0]}, "scale must be"),
        ({"horizontal_flip": 1.5}, "horizontal_flip"),
        ({"translation": 0.5}, "translation"),
        ({"gain": 1.0}, "gain"),
        ({"blackout_patches": 1}, "Extra inputs are not permitted"),
    ):
        with pytest.raises(ValidationError, match=message):
            params(**wrong)


STILL = {"mirror": 1.0, "scale": 1.0, "angle": 0.0, "shift_x": 0.0, "shift_y": 0.0}


def moves(n: int = 1, **changes: float) -> Moves:
    return Moves(**{name: torch.full((n,), value) for name, value in {**STILL, **changes}.items()})


def shifted(array: np.ndarray, right: int, down: int) -> np.ndarray:
    moved = np.zeros_like(array)
    moved[:, down:, right:] = array[:, : SIZE - down, : SIZE - right]
    return moved


ORACLES = {
    "left and right": ({"mirror": -1.0}, lambda a: a[:, :, ::-1]),
    "a quarter back": ({"angle": -math.pi / 2}, lambda a: np.rot90(a, k=1, axes=(1, 2))),
    "four pixels right, eight down": ({"shift_x": 4 / SIZE, "shift_y": 8 / SIZE}, lambda a: shifted(a, 4, 8)),
    # Mirrored first, then turned, then shifted.
    "all": (
        {"mirror": -1.0, "angle": math.pi / 2, "shift_x": 4 / SIZE},
        lambda a: shifted(np.rot90(a[:, :, ::-1], k=-1, axes=(1, 2)), 4, 0),
    ),
}


@pytest.mark.parametrize(("changes", "oracle"), ORACLES.values(), ids=ORACLES.keys())
def test_image_and_masks_move_as_numpy_moves_them(changes: dict[str, float], oracle):
    before = pixels()
    still = move(before, moves(4))
    one = moves(4, **changes)
    only_second = {name: torch.where(torch.arange(4) == 1, value, STILL[name]) for name, value in vars(one).items()}
    after, second = move(before, one), move(before, Moves(**only_second))
    for name, array in vars(before).items():
        assert np.array_equal(getattr(after, name).numpy(), oracle(array.numpy())), name
        assert torch.equal(getattr(still, name), array)
        assert torch.equal(getattr(second, name)[0], array[0]), "each core has moves of its own"
        assert torch.equal(getattr(second, name)[1], getattr(after, name)[1])


def test_any_move_equals_scipys():
    """An independent resampler with its own matrix: rows and columns instead of x and y, pixels instead of [-1, 1]."""
    made = pixels(rows=np.array([1]))
    angle, scale, right, down = 0.4, 1.3, 0.07, -0.05
    got = move(made, moves(mirror=-1.0, angle=angle, scale=scale, shift_x=right, shift_y=down))
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])  # (row, column), x towards y
    back = np.linalg.inv(scale * turn @ np.diag([1.0, -1.0]))
    centre, step = np.full(2, (SIZE - 1) / 2), SIZE * np.array([down, right])
    offset = centre - back @ (centre + step)
    expected = affine_transform(made.images[0].numpy().astype(float), back, offset, order=1, mode="grid-constant")
    np.testing.assert_allclose(got.images[0].numpy(), expected, atol=0.51)  # rounded to whole grey levels


def test_moves_are_drawn_within_their_limits_and_each_by_itself():
    n = 20_000
    given = {"horizontal_flip": 0.3, "rotation_degrees": 20.0, "translation": 0.1, "scale": (0.8, 1.3)}
    drawn, other = (
        draw_moves(n, params(**{**given, **more}), generator=Generator().manual_seed(0))
        for more in ({}, {"rotation_degrees": 90})
    )
    assert [name for name in vars(drawn) if not torch.equal(getattr(drawn, name), getattr(other, name))] == ["angle"]
    assert float((drawn.mirror < 0).float().mean()) == pytest.approx(0.3, abs=5 * math.sqrt(0.3 * 0.7 / n))
    limits = {"scale": (0.8, 1.3), "angle": (-math.radians(20), math.radians(20)), "shift_x": (-0.1, 0.1), "shift_y": (-0.1, 0.1)}
    for name, (low, high) in limits.items():
        values: Tensor = getattr(drawn, name)
        spread = high - low
        assert low - 1e-6 <= float(values.min()) < low + 0.01 * spread
        assert high + 1e-6 >= float(values.max()) > high - 0.01 * spread
        assert float(values.mean()) == pytest.approx((low + high) / 2, abs=5 * spread / math.sqrt(12 * n))


def recoloured(made: Tensor, **given: Any) -> Tensor:
    return recolour(made, params(**given), generator=Generator().manual_seed(0))


def test_gain_gamma_and_speckle():
    """Gain is one factor per image; gamma keeps black, white and the order; speckle is proportional and keeps the mean."""
    levels = recoloured(torch.full((400, 2, 2), 100, dtype=torch.uint8), gain=0.2).int().flatten(1)
    assert bool((levels.amax(1) == levels.amin(1)).all())
    assert (int(levels.min()), int(levels.max())) == (80, 120)
    ramp = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16).expand(200, 16, 16)
    got = recoloured(ramp, gamma=0.5).flatten(1).int()
    assert (got[:, 0].max(), got[:, 255].min()) == (0, 255)
    assert bool((got.diff(dim=1) >= 0).all())
    # 128 / 255 to the power e^-0.5 and e^0.5
    lightest, darkest = (255 * (128 / 255) ** math.exp(s * 0.5) for s in (-1, 1))
    assert (float(got[:, 128].max()), float(got[:, 128].min())) == pytest.approx((lightest, darkest), abs=2)
    for level in (50, 100):
        noisy = recoloured(torch.full((4, 64, 64), level, dtype=torch.uint8), speckle=0.1).float()
        assert float(noisy.mean()) == pytest.approx(level, abs=5 * 0.1 * level / math.sqrt(noisy.numel()) + 0.01)
        assert float(noisy.std()) == pytest.approx(0.1 * level, rel=0.05)
    made = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8, generator=Generator().manual_seed(1))
    made[:, :8] = 0
    assert torch.equal(recoloured(made, gain=0.9, gamma=1.0, speckle=0.9) == 0, made == 0), "padding stays, the seen stays seen"


def test_an_image_whose_region_keeps_exactly_as_many_cells_as_points_is_moved():
    small = params(scale=[0.3, 0.5], translation=0.1)
    moved = move(pixels(), draw_moves(len(ROWS), small, generator=generator(3)))
    counts = region_cells(moved.region, GRID).sum(1)
    assert counts.min() >= 1
    for points in (int(counts.min()), int(counts.min()) + 1):
        found = augment(pixels(), small, grid=GRID, points=points, generator=generator(3))
        for row in range(len(ROWS)):
            has_bag = bool((moved.bag & moved.region)[row].any())
            expected = moved if counts[row] >= points and has_bag else pixels()
            assert torch.equal(found.images[row], expected.images[row])
