import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import affine_transform
from tiny_attention import SIZE, make_examples
from torch import Tensor

from grpo_pipeline.tasks.attention.batch import Pixels, read_pixels
from grpo_pipeline.tasks.attention.data.augmentation import AugmentationParams, Moves, affine_maps, choose, draw_moves, move

STILL = {"mirror_x": 1.0, "mirror_y": 1.0, "scale": 1.0, "angle": 0.0, "shift_x": 0.0, "shift_y": 0.0}


def moves(n: int = 1, **changes: float) -> Moves:
    return Moves(**{name: torch.full((n,), value) for name, value in {**STILL, **changes}.items()})


def pixels(rows: tuple[int, ...] = (1, 3)) -> Pixels:
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
    before = pixels()
    after = move(before, affine_maps(moves(2, **changes)))
    for name, array in vars(before).items():
        assert np.array_equal(getattr(after, name).numpy(), oracle(array.numpy())), name


def test_any_map_equals_scipys():
    """An independent resampler with its own matrix: rows and columns instead of x and y, pixels instead of [-1, 1]."""
    made = pixels((1,))
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
    made = pixels((1, 1))
    two = moves(2)
    after = move(made, affine_maps(replace(two, mirror_x=torch.tensor([1.0, -1.0]))))
    assert torch.equal(after.images[0], made.images[0])
    assert torch.equal(after.images[1], made.images[1].flip(1))


def test_choose_takes_whole_cores():
    a, b = pixels((1, 3)), pixels((5, 7))
    mixed = choose(a, b, torch.tensor([True, False]))
    for name in ("images", "region", "bag", "lesion"):
        assert torch.equal(getattr(mixed, name)[0], getattr(a, name)[0])
        assert torch.equal(getattr(mixed, name)[1], getattr(b, name)[1])
    without = choose(replace(a, lesion=None), replace(b, lesion=None), torch.tensor([True, False]))
    assert without.lesion is None


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
