import math

import pytest
import torch
from torch import Generator, Tensor

from grpo_pipeline.tasks.attention.data.augmentation import AugmentationParams, blackout, recolour


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
