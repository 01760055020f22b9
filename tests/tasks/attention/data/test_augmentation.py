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
    weights,
)
from torch import Generator, Tensor

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionData, Pixels, read_pixels, region_cells
from grpo_pipeline.tasks.attention.build import build_task
from grpo_pipeline.tasks.attention.data.augmentation import (
    Moves,
    affine_maps,
    augment,
    blackout,
    draw_moves,
    is_usable,
    move,
    recolour,
)
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.data.params import AugmentationParams
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


STILL = {"mirror_x": 1.0, "mirror_y": 1.0, "scale": 1.0, "angle": 0.0, "shift_x": 0.0, "shift_y": 0.0}


def moves(n: int = 1, **changes: float) -> Moves:
    return Moves(**{name: torch.full((n,), value) for name, value in {**STILL, **changes}.items()})


def geometry_pixels(rows: tuple[int, ...] = (1, 3)) -> Pixels:
    return read_pixels(make_examples(), np.array(rows), device=torch.device("cpu"), with_lesion=True)


def shifted(array: np.ndarray, right: int, down: int) -> np.ndarray:
    moved = np.zeros_like(array)
    moved[:, down:, right:] = array[:, : SIZE - down, : SIZE - right]
    return moved


ORACLES = {
    "nothing": ({}, lambda a: a),
    "left and right": ({"mirror_x": -1.0}, lambda a: a[:, :, ::-1]),
    "top and bottom": ({"mirror_y": -1.0}, lambda a: a[:, ::-1]),
    "a quarter clockwise": ({"angle": math.pi / 2}, lambda a: np.rot90(a, k=-1, axes=(1, 2))),
    "a quarter back": ({"angle": -math.pi / 2}, lambda a: np.rot90(a, k=1, axes=(1, 2))),
    "half a turn": ({"angle": math.pi}, lambda a: np.rot90(a, k=2, axes=(1, 2))),
    "four pixels right, eight down": ({"shift_x": 4 / SIZE, "shift_y": 8 / SIZE}, lambda a: shifted(a, 4, 8)),
    # Mirrored first, then turned, then shifted.
    "all": (
        {"mirror_x": -1.0, "angle": math.pi / 2, "shift_x": 4 / SIZE},
        lambda a: shifted(np.rot90(a[:, :, ::-1], k=-1, axes=(1, 2)), 4, 0),
    ),
}


@pytest.mark.parametrize(("changes", "oracle"), ORACLES.values(), ids=ORACLES.keys())
def test_image_and_masks_move_as_numpy_moves_them(changes: dict[str, float], oracle):
    before = geometry_pixels()
    after = move(before, affine_maps(moves(2, **changes)))
    for name, array in vars(before).items():
        assert np.array_equal(getattr(after, name).numpy(), oracle(array.numpy())), name


def test_any_map_equals_scipys():
    """An independent resampler with its own matrix: rows and columns instead of x and y, pixels instead of [-1, 1]."""
    made = geometry_pixels((1,))
    angle, scale, right, down = 0.4, 1.3, 0.07, -0.05
    got = move(made, affine_maps(moves(mirror_y=-1.0, angle=angle, scale=scale, shift_x=right, shift_y=down)))
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])  # (row, column), x towards y
    forward = scale * turn @ np.diag([-1.0, 1.0])
    centre, step = np.full(2, (SIZE - 1) / 2), SIZE * np.array([down, right])
    back = np.linalg.inv(forward)
    offset = centre - back @ (centre + step)
    expected = affine_transform(made.images[0].numpy().astype(float), back, offset, order=1, mode="grid-constant")
    np.testing.assert_allclose(got.images[0].numpy(), expected, atol=0.51)  # rounded to whole grey levels


def test_cores_have_maps_of_their_own():
    made = geometry_pixels((1, 1))
    two = moves(2)
    after = move(made, affine_maps(replace(two, mirror_x=torch.tensor([1.0, -1.0]))))
    assert torch.equal(after.images[0], made.images[0])
    assert torch.equal(after.images[1], made.images[1].flip(1))


def test_moves_are_drawn_within_their_limits():
    n = 20_000
    params = AugmentationParams(horizontal_flip=0.3, vertical_flip=0.0, rotation_degrees=20.0, translation=0.1, scale=(0.8, 1.3))
    drawn = draw_moves(n, params, generator=torch.Generator().manual_seed(0))
    assert float((drawn.mirror_x < 0).float().mean()) == pytest.approx(0.3, abs=5 * math.sqrt(0.3 * 0.7 / n))
    assert bool((drawn.mirror_y == 1).all())
    limits = {"scale": (0.8, 1.3), "angle": (-math.radians(20), math.radians(20)), "shift_x": (-0.1, 0.1), "shift_y": (-0.1, 0.1)}
    for name, (low, high) in limits.items():
        values: Tensor = getattr(drawn, name)
        spread = high - low
        assert low - 1e-6 <= float(values.min()) < low + 0.01 * spread
        assert high + 1e-6 >= float(values.max()) > high - 0.01 * spread
        assert float(values.mean()) == pytest.approx((low + high) / 2, abs=5 * spread / math.sqrt(12 * n))


def test_what_one_move_draws_does_not_depend_on_the_others():
    few, many = (
        draw_moves(5, AugmentationParams(translation=0.1, rotation_degrees=angle), generator=torch.Generator().manual_seed(3))
        for angle in (0.0, 90.0)
    )
    assert torch.equal(few.shift_x, many.shift_x)
    assert torch.equal(few.shift_y, many.shift_y)


def images(n: int = 3, side: int = 32) -> Tensor:
    return torch.randint(0, 256, (n, side, side), dtype=torch.uint8, generator=Generator().manual_seed(1))


def recoloured(made: Tensor, seed: int = 0, **given: float) -> Tensor:
    return recolour(made, AugmentationParams(**given), generator=Generator().manual_seed(seed))


def test_gain_is_one_factor_per_image():
    made = torch.full((400, 2, 2), 100, dtype=torch.uint8)
    levels = recoloured(made, gain=0.2).int().flatten(1)
    assert bool((levels.amax(1) == levels.amin(1)).all())
    assert (int(levels.min()), int(levels.max())) == (80, 120)


def test_gamma_keeps_black_and_white_and_the_order_of_levels():
    ramp = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16).expand(200, 16, 16)
    got = recoloured(ramp, gamma=0.5).flatten(1).int()
    assert bool((got[:, 0] == 0).all())
    assert bool((got[:, 255] == 255).all())
    assert bool((got.diff(dim=1) >= 0).all())
    # 128 / 255 to the power e^-0.5 and e^0.5
    lightest, darkest = (255 * (128 / 255) ** math.exp(s * 0.5) for s in (-1, 1))
    assert float(got[:, 128].max()) == pytest.approx(lightest, abs=2)
    assert float(got[:, 128].min()) == pytest.approx(darkest, abs=2)


def test_speckle_multiplies():
    """The deviation is proportional to the grey level, and the mean stays."""
    for level in (50, 100):
        got = recoloured(torch.full((4, 64, 64), level, dtype=torch.uint8), speckle=0.1).float()
        n = got.numel()
        assert float(got.mean()) == pytest.approx(level, abs=5 * 0.1 * level / math.sqrt(n) + 0.01)
        assert float(got.std()) == pytest.approx(0.1 * level, rel=0.05)


def test_padding_stays_padding_and_what_is_seen_stays_seen():
    made = images()
    made[:, :8] = 0
    got = recoloured(made, gain=0.9, gamma=1.0, speckle=0.9)
    assert torch.equal(got == 0, made == 0)


def test_blackout_draws_whole_squares_in_the_image():
    params = AugmentationParams(blackout_patches=1, blackout_size=0.25)
    masks = blackout(300, 32, params, generator=Generator().manual_seed(0))
    assert bool((masks.flatten(1).sum(1) == 8 * 8).all())
    for axis in (1, 2):
        lines = masks.any(axis)
        assert bool((lines.sum(1) == 8).all())
        first = lines.float().argmax(1)
        assert bool(lines.gather(1, first[:, None] + torch.arange(8)).all())
        assert (int(first.min()), int(first.max())) == (0, 24)


def test_blackout_sets_squares_to_0_and_leaves_the_rest():
    made = torch.full((20, 32, 32), 90, dtype=torch.uint8)
    got = recoloured(made, blackout_patches=3, blackout_size=0.2)
    dark = (got == 0).flatten(1).sum(1)
    assert bool(((got == 0) | (got == 90)).all())
    assert bool((dark >= 36).all())
    assert bool((dark <= 3 * 36).all())
    assert int(dark.max()) > 36
