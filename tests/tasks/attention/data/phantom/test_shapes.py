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
from grpo_pipeline.tasks.attention.data.phantom.speckle import log_compress, scatterer_power, smooth, tissue

NO_WOBBLE = np.zeros((0, 2))


def test_a_blob_is_a_turned_ellipse_and_a_needle_has_its_length_and_width():
    x, y = pixel_grid(4)
    assert x[0].tolist() == y[:, 0].tolist() == [0.125, 0.375, 0.625, 0.875]
    grid = pixel_grid(400)
    inside = blob(grid, (0.4, 0.6), (0.3, 0.2), 0.0, wobble=NO_WOBBLE) < 1
    expected = ((grid[0] - 0.4) / 0.3) ** 2 + ((grid[1] - 0.6) / 0.2) ** 2 < 1
    np.testing.assert_array_equal(inside, expected)
    assert inside.mean() == pytest.approx(np.pi * 0.3 * 0.2, rel=0.01)
    # At 45 degrees the long axis runs from the top left to the bottom right.
    inside = blob(pixel_grid(100), (0.5, 0.5), (0.4, 0.1), np.pi / 4, wobble=NO_WOBBLE) < 1
    assert inside[70, 70]
    assert not inside[30, 70]
    # Second harmonic of 0.2 at phase 0: 20% further along x, 20% nearer along y.
    level = blob(pixel_grid(1001), (0.5, 0.5), (0.25, 0.25), 0.0, wobble=np.array([[0.2, 0.0]]))
    assert level[500, 800] == pytest.approx(0.29970 / 0.25 / 1.2, rel=1e-2)
    assert level[700, 500] == pytest.approx(0.19980 / 0.25 / 0.8, rel=1e-2)
    mask = needle_mask(Needle(0.5, 0.5, 0.0, 0.5, 0.06), pixel_grid(500))
    assert (mask.any(axis=0).sum(), mask.any(axis=1).sum()) == (250, 30)


@pytest.mark.parametrize("seed", range(8))
def test_lesion_has_its_exact_area_in_the_region_and_crosses_the_needle(seed):
    rng, grid = np.random.default_rng(seed), pixel_grid(96)
    gland = draw_gland(rng, grid)
    region = gland < 1
    needle = draw_needle(rng, gland, grid)
    lesion = draw_lesion(rng, region, needle, grid, share=0.1)
    assert lesion.sum() == pytest.approx(0.1 * region.sum(), abs=2)  # pixels that lie on one level come together
    assert not (lesion & ~region).any()
    assert lesion.sum() >= round(0.1 * region.sum())
    assert (lesion & needle_mask(needle, grid)).any()


def test_shadow_lies_below_its_reflector():
    shadow = draw_shadow(np.random.default_rng(0), pixel_grid(64))
    assert shadow[0].max() < 0.05
    assert shadow[-1].max() > 0.9
    assert (shadow[-1] > 0.5).sum() >= (shadow[40] > 0.5).sum() > 0


def rng():
    return np.random.default_rng(0)


def noise(size):
    """Circular complex noise of unit power."""
    real, imaginary = rng().standard_normal((2, size, size)) / np.sqrt(2)
    return real + 1j * imaginary


@pytest.mark.parametrize("density", [0.5, 2.0, 50.0])
def test_intensity_moments_are_those_of_a_k_distribution(density):
    """E[I^2] / E[I]^2 = 2 (1 + 1/density): 2 for Rayleigh speckle, more for few scatterers (Jakeman and Pusey 1976)."""
    echo = np.sqrt(scatterer_power(rng(), 1024, density=density, grain=0)) * noise(1024)
    intensity = np.abs(echo) ** 2
    assert np.mean(intensity**2) / np.mean(intensity) ** 2 == pytest.approx(2 * (1 + 1 / density), rel=0.05)
    # A grain of 1.6 pixels averages 4 pi 1.6^2 = 32 pixels; the variance 1/density must come out all the same.
    power = scatterer_power(rng(), 1024, density=0.7, grain=1.6)
    assert power.mean() == pytest.approx(1.0, abs=1e-3)
    assert power.var() == pytest.approx(1 / 0.7, rel=0.1)
    assert np.mean(np.abs(tissue(rng(), 256, psf=(0.9, 1.5), density=0.7, grain=1.6)) ** 2) == pytest.approx(1.0, abs=1e-5)


def test_point_spread_function_sets_the_correlation():
    """White noise through a Gaussian of width s correlates as exp(-d^2 / (4 s^2)), along each axis with its own s."""
    field = smooth(noise(1024), (1.0, 2.0))
    down = np.mean(field[:-2] * field[2:].conj()).real
    right = np.mean(field[:, :-2] * field[:, 2:].conj()).real
    assert down == pytest.approx(np.exp(-1.0), abs=0.01)
    assert right == pytest.approx(np.exp(-0.25), abs=0.01)


def test_log_compression():
    """Dynamic range 60 dB, gain 0: 0 dB is white, -30 dB half, -60 dB and below black."""
    echo = np.array([[1.0, 10 ** (-30 / 20), 1e-3, 1e-5, 10.0]], complex)
    assert log_compress(echo, gain=0, dynamic_range=60, gamma=1).tolist() == [[255, 128, 0, 0, 255]]
    assert log_compress(np.array([[1.0]]), gain=-30, dynamic_range=60, gamma=2).item() == 64
