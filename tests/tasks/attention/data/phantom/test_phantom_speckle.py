import numpy as np
import pytest

from grpo_pipeline.tasks.attention.data.phantom.shapes import (
    complex_noise,
    log_compress,
    scatterer_power,
    smooth,
    tissue,
)


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("density", [0.5, 2.0, 50.0])
def test_intensity_moments_are_those_of_a_k_distribution(density):
    """E[I^2] / E[I]^2 = 2 (1 + 1/density): 2 for Rayleigh speckle, more for few scatterers (Jakeman and Pusey 1976)."""
    echo = np.sqrt(scatterer_power(rng(), 1024, density=density, grain=0)) * complex_noise(rng(), 1024)
    intensity = np.abs(echo) ** 2
    assert np.mean(intensity**2) / np.mean(intensity) ** 2 == pytest.approx(2 * (1 + 1 / density), rel=0.05)


def test_smoothing_the_power_keeps_its_contrast():
    """A grain of 1.6 pixels averages 4 pi 1.6^2 = 32 pixels; the variance 1/density must come out all the same."""
    power = scatterer_power(rng(), 1024, density=0.7, grain=1.6)
    assert power.mean() == pytest.approx(1.0, abs=1e-3)
    assert power.var() == pytest.approx(1 / 0.7, rel=0.1)


def test_point_spread_function_sets_the_correlation():
    """White noise through a Gaussian of width s correlates as exp(-d^2 / (4 s^2)), along each axis with its own s."""
    field = smooth(complex_noise(rng(), 1024), (1.0, 2.0))
    down = np.mean(field[:-2] * field[2:].conj()).real
    right = np.mean(field[:, :-2] * field[:, 2:].conj()).real
    assert down == pytest.approx(np.exp(-1.0), abs=0.01)
    assert right == pytest.approx(np.exp(-0.25), abs=0.01)


def test_tissue_has_unit_power():
    assert np.mean(np.abs(tissue(rng(), 256, psf=(0.9, 1.5), density=0.7, grain=1.6)) ** 2) == pytest.approx(1.0, abs=1e-5)


def test_log_compression():
    """Dynamic range 60 dB, gain 0: 0 dB is white, -30 dB half, -60 dB and below black."""
    echo = np.array([[1.0, 10 ** (-30 / 20), 1e-3, 1e-5, 10.0]], complex)
    assert log_compress(echo, gain=0, dynamic_range=60, gamma=1).tolist() == [[255, 128, 0, 0, 255]]
    assert log_compress(np.array([[1.0]]), gain=-30, dynamic_range=60, gamma=2).item() == 64
