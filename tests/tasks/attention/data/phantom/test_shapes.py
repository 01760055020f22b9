import numpy as np
import pytest

from grpo_pipeline.tasks.attention.data.phantom.shapes import (
    Needle,
    blob,
    draw_gland,
    draw_lesion,
    draw_needle,
    draw_shadow,
    needle_mask,
    pixel_grid,
)

NO_WOBBLE = np.zeros((0, 2))


def test_pixel_centres():
    x, y = pixel_grid(4)
    assert x[0].tolist() == y[:, 0].tolist() == [0.125, 0.375, 0.625, 0.875]


def test_blob_without_wobble_is_an_ellipse():
    grid = pixel_grid(400)
    inside = blob(grid, (0.4, 0.6), (0.3, 0.2), 0.0, wobble=NO_WOBBLE) < 1
    expected = ((grid[0] - 0.4) / 0.3) ** 2 + ((grid[1] - 0.6) / 0.2) ** 2 < 1
    np.testing.assert_array_equal(inside, expected)
    assert inside.mean() == pytest.approx(np.pi * 0.3 * 0.2, rel=0.01)


def test_blob_turns_with_y_pointing_down():
    """At 45 degrees the long axis runs from the top left to the bottom right."""
    inside = blob(pixel_grid(100), (0.5, 0.5), (0.4, 0.1), np.pi / 4, wobble=NO_WOBBLE) < 1
    assert inside[70, 70]
    assert not inside[30, 70]


def test_harmonic_moves_the_outline():
    """Second harmonic of 0.2 at phase 0: 20% further along x, 20% nearer along y."""
    level = blob(pixel_grid(1001), (0.5, 0.5), (0.25, 0.25), 0.0, wobble=np.array([[0.2, 0.0]]))
    assert level[500, 800] == pytest.approx(0.29970 / 0.25 / 1.2, rel=1e-2)
    assert level[700, 500] == pytest.approx(0.19980 / 0.25 / 0.8, rel=1e-2)


def test_needle_has_its_length_and_width():
    mask = needle_mask(Needle(0.5, 0.5, 0.0, 0.5, 0.06), pixel_grid(500))
    assert mask.any(axis=0).sum() == 250
    assert mask.any(axis=1).sum() == 30


@pytest.mark.parametrize("seed", range(20))
def test_lesion_has_its_exact_area_in_the_region_and_crosses_the_needle(seed):
    rng, grid = np.random.default_rng(seed), pixel_grid(96)
    gland = draw_gland(rng, grid)
    region = gland < 1
    needle = draw_needle(rng, gland, grid)
    lesion = draw_lesion(rng, region, needle, grid, share=0.1)
    assert lesion.sum() == pytest.approx(0.1 * region.sum(), abs=2)  # pixels that lie on one level come together
    assert not (lesion & ~region).any()
    assert (lesion & needle_mask(needle, grid)).any()


def test_shadow_lies_below_its_reflector():
    shadow = draw_shadow(np.random.default_rng(0), pixel_grid(64))
    assert shadow[0].max() < 0.05
    assert shadow[-1].max() > 0.9
    assert (shadow[-1] > 0.5).sum() >= (shadow[40] > 0.5).sum() > 0
