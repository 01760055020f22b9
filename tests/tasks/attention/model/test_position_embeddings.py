import numpy as np
import pytest
import torch
from sam_oracle import wave
from torch import Tensor

from grpo_pipeline.tasks.attention.model.pretrained import fit_positions, resize_absolute, resize_relative


def cubic(distance: float) -> float:
    """Keys' kernel with a = -0.75, the weight of a sample at this distance."""
    a, d = -0.75, abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def naive_bicubic(values: np.ndarray, size: int) -> np.ndarray:
    """Interpolate [n, n] by the sum over 4 x 4 neighbours; cells beyond the edge repeat it."""
    n = len(values)
    out = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            y, x = (i + 0.5) * n / size - 0.5, (j + 0.5) * n / size - 0.5
            for row in range(int(np.floor(y)) - 1, int(np.floor(y)) + 3):
                for column in range(int(np.floor(x)) - 1, int(np.floor(x)) + 3):
                    cell = values[min(max(row, 0), n - 1), min(max(column, 0), n - 1)]
                    out[i, j] += cubic(y - row) * cubic(x - column) * cell
    return out


def naive_linear(values: np.ndarray, size: int) -> np.ndarray:
    n = len(values)
    centres = (np.arange(size) + 0.5) * n / size - 0.5
    return np.interp(centres, np.arange(n), values)


def double(shape: tuple[int, ...]) -> Tensor:
    return wave(3, shape).double()


@pytest.mark.parametrize("size", [3, 5, 8, 13])
def test_absolute_positions_are_bicubic(size: int):
    embedding = double((1, 8, 8, 2))
    made = resize_absolute(embedding, size)
    assert made.shape == (1, size, size, 2)
    for channel in range(2):
        expected = naive_bicubic(embedding[0, :, :, channel].numpy(), size)
        np.testing.assert_allclose(made[0, :, :, channel], expected, atol=1e-12)


@pytest.mark.parametrize("grid", [2, 5, 8, 11])
def test_relative_positions_are_linear(grid: int):
    embedding = double((15, 3))
    made = resize_relative(embedding, grid)
    assert made.shape == (2 * grid - 1, 3)
    for channel in range(3):
        np.testing.assert_allclose(made[:, channel], naive_linear(embedding[:, channel].numpy(), 2 * grid - 1), atol=1e-12)


def test_the_same_grid_changes_no_bit():
    absolute, relative = double((1, 8, 8, 2)), double((15, 3))
    assert resize_absolute(absolute, 8) is absolute
    assert resize_relative(relative, 8) is relative


def test_distance_zero_stays_in_the_middle():
    ramp = torch.arange(-7, 8, dtype=torch.float64)[:, None]
    # 15 distances onto 7: 15 / 7 apart, and the middle one stays 0.
    small = resize_relative(ramp, 4)[:, 0]
    torch.testing.assert_close(small, torch.arange(-3, 4, dtype=torch.float64) * 15 / 7, atol=1e-12, rtol=0)


def test_only_global_layers_are_resized():
    names = ["vision_encoder.pos_embed", *(f"vision_encoder.layers.{i}.attn.rel_pos_{a}" for i in (0, 1) for a in "hw"), "other"]
    shapes = [(1, 8, 8, 4), (5, 2), (5, 2), (15, 2), (15, 2), (7,)]
    weights = {name: double(shape) for name, shape in zip(names, shapes, strict=True)}
    fitted = fit_positions(weights, grid=4, global_layers=(1,))
    assert [tuple(tensor.shape) for tensor in fitted.values()] == [(1, 4, 4, 4), (5, 2), (5, 2), (7, 2), (7, 2), (7,)]
    assert fitted["vision_encoder.layers.0.attn.rel_pos_h"] is weights["vision_encoder.layers.0.attn.rel_pos_h"]
    assert weights["vision_encoder.pos_embed"].shape == (1, 8, 8, 4)
