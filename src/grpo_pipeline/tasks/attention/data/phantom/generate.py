"""Generate micro-ultrasound-like cores with known lesions; docs/attention/phantom.md gives the assumptions and reasons.

How this differs from a simulator: scatterers are not tracked in three dimensions and beams are not formed. A core is a compound
speckle field whose density and grain change inside the lesion, multiplied by slow gains and log-compressed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from scipy.special import expit

from grpo_pipeline.tasks.attention.data.phantom import shapes
from grpo_pipeline.tasks.attention.data.phantom.params import PhantomParams
from grpo_pipeline.tasks.attention.data.phantom.patients import Patient, draw_patient
from grpo_pipeline.tasks.attention.data.phantom.speckle import decibels, log_compress, tissue

COLUMNS = (
    "core_id", "patient_id", "center", "image", "region_mask", "bag_mask", "lesion_mask", "label", "involvement", "grade_group",
    "age", "psa", "psa_density", "family_history",
)  # fmt: skip

# Lengths in pixels, levels in dB; a pair of levels is the range of a uniform draw.
BENIGN_PSF, CANCER_PSF = (0.95, 1.5), (0.75, 1.05)
"""Widths of the point spread along and across the beam."""
BENIGN_DENSITY, CANCER_DENSITY = 0.7, 4.0
"""Scatterers per pixel."""
DENSITY_JITTER = 0.4
"""Standard deviation of the logarithm of the density between cores."""
DUCT_SIZE = 1.6
"""Correlation length of the benign tissue's ducts."""
CONSPICUITY_SPREAD = 0.22
"""Standard deviation of a lesion's conspicuity around the mean of its grade group."""
CANCER_LEVEL = -1.0
"""Of the most conspicuous cancer beside benign tissue."""
MOST_LOOKALIKES, LOOKALIKE_LEVEL = 2, (-8.0, -3.5)
"""Dark benign areas of a core that look like cancer, 0 to so many."""
SHADOW_SHARE, SHADOW_LEVEL = 0.35, (-14.0, -6.0)
"""How many of the cores have an acoustic shadow."""
ATTENUATION = (0.0, 7.0)
"""Loss from the top to the bottom of an image."""
NOISE_FLOOR = -27.0


@dataclass(frozen=True)
class PhantomCore:
    """A generated core: image uint8 [S, S], masks bool [S, S], its manifest row, and the hidden conspicuity (0 if benign)."""

    image: np.ndarray
    region: np.ndarray
    needle: np.ndarray
    lesion: np.ndarray
    row: dict[str, str | int | float]
    conspicuity: float


@dataclass(frozen=True)
class Scanner:
    """Display settings of a center: gain and dynamic range in dB, gamma, and a factor on the point-spread function."""

    gain: float
    dynamic_range: float
    gamma: float
    blur: float


def generate_cores(params: PhantomParams) -> Iterator[PhantomCore]:
    """Yield every core, patient by patient; each depends on the seed, its patient and its own number only."""
    for number in range(params.patients):
        patient_rng, *core_rngs = patient_streams(params, number)
        patient = draw_patient(patient_rng, number, params=params)
        scanner = draw_scanner(params, number % params.centers)
        for core, grade in enumerate(patient.grades):
            yield draw_core(
                core_rngs[core], patient, core, grade=grade, scanner=scanner, params=params
            )


def count_cores(params: PhantomParams) -> int:
    """Count the cores of ``generate_cores``, without drawing an image."""
    return sum(
        len(draw_patient(patient_streams(params, n)[0], n, params=params).grades)
        for n in range(params.patients)
    )


def patient_streams(params: PhantomParams, number: int) -> list[Generator]:
    """Build the independent generators of a patient: the first for the patient, then one for each possible core."""
    sequence = SeedSequence([params.seed, 1, number])
    return [default_rng(child) for child in sequence.spawn(1 + params.cores_per_patient[1])]


def draw_scanner(params: PhantomParams, center: int) -> Scanner:
    """Draw the display settings of a center."""
    rng = default_rng(SeedSequence([params.seed, 2, center]))
    return Scanner(
        gain=rng.uniform(-27, -20),
        dynamic_range=rng.uniform(48, 62),
        gamma=rng.uniform(0.85, 1.2),
        blur=rng.uniform(0.93, 1.07),
    )


def draw_core(
    rng: Generator,
    patient: Patient,
    number: int,
    *,
    grade: int,
    scanner: Scanner,
    params: PhantomParams,
) -> PhantomCore:
    """Draw a core of a patient: shapes, then speckle, then the manifest row."""
    grid = shapes.pixel_grid(params.image_size)
    gland = shapes.draw_gland(rng, grid)
    region = gland < 1
    needle = shapes.draw_needle(rng, gland, grid)
    trace = shapes.needle_mask(needle, grid)
    lesion, conspicuity = np.zeros_like(region), 0.0
    if grade > 0:
        lesion = shapes.draw_lesion(
            rng, region, needle, grid, share=rng.uniform(*params.lesion_share)
        )
        conspicuity = float(
            np.clip(rng.normal(params.conspicuity[grade - 1], CONSPICUITY_SPREAD), 0.0, 1.0)
        )
    echo = draw_echo(rng, gland, lesion, conspicuity=conspicuity, blur=scanner.blur, params=params)
    # Brightness of the needle in dB, [S, S]: a thin bright line in a faintly brighter band.
    along, across = shapes.needle_frame(needle, grid)
    within = expit((needle.length / 2 - np.abs(along)) / 0.01)
    line = rng.uniform(4, 8) * np.exp(-((across / 0.008) ** 2))
    band = rng.uniform(0.5, 1.5) * (np.abs(across) <= needle.width / 2)
    echo = echo * decibels(within * (line + band))
    image = log_compress(
        echo, gain=scanner.gain, dynamic_range=scanner.dynamic_range, gamma=scanner.gamma
    )
    involvement = 0.0
    if grade > 0:
        # The share of the trace in the lesion as a pathologist reports it: error of 0.05, steps of 0.05, at least 0.05.
        bag = trace & region
        share = np.count_nonzero(bag & lesion) / np.count_nonzero(bag) + rng.normal(0, 0.05)
        involvement = float(np.clip(np.round(share * 20) / 20, 0.05, 1.0))
    return PhantomCore(
        image,
        region,
        trace,
        lesion,
        manifest_row(patient, number, grade=grade, involvement=involvement),
        conspicuity,
    )


def draw_echo(
    rng: Generator,
    gland: np.ndarray,
    lesion: np.ndarray,
    *,
    conspicuity: float,
    blur: float,
    params: PhantomParams,
) -> np.ndarray:
    """Draw the complex echo of a core, complex [S, S].

        echo = (sqrt(1 - c) benign + sqrt(c) cancer) * 10^(level / 20) + noise,   c = conspicuity inside the lesion, 0 outside

    The powers of the two tissues add up, so brightness alone does not give a lesion away.
    """
    size = params.image_size
    jitter = np.exp(DENSITY_JITTER * rng.standard_normal())
    axial, lateral = BENIGN_PSF
    benign = tissue(
        rng,
        size,
        psf=(axial * blur, lateral * blur),
        density=BENIGN_DENSITY * jitter,
        grain=DUCT_SIZE,
    )
    share = np.where(lesion, np.float32(conspicuity), np.float32(0))
    echo = np.sqrt(1 - share) * benign
    if lesion.any():
        axial, lateral = CANCER_PSF
        cancer = tissue(
            rng,
            size,
            psf=(axial * blur, lateral * blur),
            density=CANCER_DENSITY * jitter,
            grain=0.0,
        )
        echo = echo + np.sqrt(share) * cancer
    level = draw_level(rng, gland, params=params) + CANCER_LEVEL * share
    noise = tissue(rng, size, psf=(0.6, 0.6), density=50.0, grain=0.0)
    return np.asarray(echo * decibels(level) + noise * decibels(NOISE_FLOOR))


def draw_level(rng: Generator, gland: np.ndarray, *, params: PhantomParams) -> np.ndarray:
    """Draw the slow changes of brightness in dB, [S, S]: capsule, surroundings, look-alikes, depth and shadow."""
    grid = shapes.pixel_grid(params.image_size)
    region = gland < 1
    level = np.where(region, 0.0, rng.uniform(1.0, 5.0)) + 5.0 * np.exp(
        -(((gland - 1.0) / 0.03) ** 2)
    )
    for _ in range(rng.integers(MOST_LOOKALIKES + 1)):
        patch = shapes.draw_patch(rng, region, grid)
        level = level + rng.uniform(*LOOKALIKE_LEVEL) * expit((1 - patch) / 0.06) * region
    level = level - rng.uniform(*ATTENUATION) * (grid[1] - 0.3)
    if rng.random() < SHADOW_SHARE:
        level = level + rng.uniform(*SHADOW_LEVEL) * shapes.draw_shadow(rng, grid)
    return level


def manifest_row(
    patient: Patient, number: int, *, grade: int, involvement: float
) -> dict[str, str | int | float]:
    """Return the manifest row of a core; a benign core has no lesion mask."""
    core_id = f"{patient.patient_id}-{number + 1}"
    values = (
        core_id, patient.patient_id, patient.center, f"images/{core_id}.png", f"region/{core_id}.png", f"needle/{core_id}.png",
        f"lesion/{core_id}.png" if grade > 0 else "", int(grade > 0), round(involvement, 2), grade,
        patient.age, patient.psa, patient.psa_density, patient.family_history,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))
