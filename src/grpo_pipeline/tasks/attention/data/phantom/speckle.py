"""Draw the speckle of a phantom core: a compound (K-distributed) scatterer field seen through a point-spread function."""

import numpy as np
from numpy.random import Generator
from scipy.ndimage import gaussian_filter


def smooth(field: np.ndarray, psf: tuple[float, float]) -> np.ndarray:
    """Convolve a complex field with a Gaussian point-spread function (axial, lateral sigma in pixels) and keep its power at 1."""
    real = gaussian_filter(field.real, psf, mode="wrap")
    imaginary = gaussian_filter(field.imag, psf, mode="wrap")
    smoothed = real + 1j * imaginary
    return np.asarray(smoothed / np.sqrt(np.mean(np.abs(smoothed) ** 2)))


def scatterer_power(rng: Generator, size: int, *, density: float, grain: float) -> np.ndarray:
    """Draw the local scattering power, mean 1, float32 [size, size].

    The power is a gamma variable of shape ``density`` (effective scatterers per resolution cell). Its square root times Gaussian
    noise is K-distributed. Large densities give fully developed (Rayleigh) speckle, small ones a grainy, heavy-tailed image.
    Source: Jakeman and Pusey 1976; Dutt and Greenleaf 1994 for ultrasound.

    Args:
        rng: source of randomness.
        size: side of the image in pixels.
        density: shape of the gamma variable.
        grain: correlation length of the power in pixels (sigma); 0 for none.
    """
    # Smoothing averages about 4 pi grain^2 pixels and would hide the density, so the shape is divided by that number.
    averaged = max(1.0, 4 * np.pi * grain**2)
    power = rng.standard_gamma(density / averaged, (size, size), dtype=np.float32)
    power = gaussian_filter(power, grain, mode="wrap") if grain > 0 else power
    return np.asarray(power / power.mean())


def tissue(
    rng: Generator, size: int, *, psf: tuple[float, float], density: float, grain: float
) -> np.ndarray:
    """Draw the complex echo of a tissue, unit power, complex64 [size, size]."""
    power = scatterer_power(rng, size, density=density, grain=grain)
    # Circular complex Gaussian noise of unit power.
    parts = rng.standard_normal((2, size, size), dtype=np.float32)
    noise = np.asarray((parts[0] + 1j * parts[1]) / np.float32(np.sqrt(2)))
    return smooth(np.sqrt(power) * noise, psf)


def decibels(level: np.ndarray | float) -> np.ndarray:
    """Turn a level in dB into an amplitude factor, 10^(level / 20)."""
    return np.power(10.0, np.asarray(level) / 20.0)


def log_compress(
    echo: np.ndarray, *, gain: float, dynamic_range: float, gamma: float
) -> np.ndarray:
    """Turn a complex echo into grey levels, uint8 [H, W].

        grey = 255 * clip(1 + (20 log10 |echo| + gain) / dynamic_range, 0, 1) ^ gamma

    Args:
        echo: complex echo.
        gain: level added, in dB.
        dynamic_range: displayed range below 0 dB, in dB.
        gamma: exponent of the display curve.
    """
    level = 20 * np.log10(np.abs(echo) + 1e-6) + gain
    shown = np.clip(1 + level / dynamic_range, 0, 1) ** gamma
    return np.asarray(np.round(255 * shown).astype(np.uint8))
