"""Draw the patients of the phantom: cancer, grades and clinical values (docs/attention/phantom.md)."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from grpo_pipeline.tasks.attention.data.phantom.params import PhantomParams

GRADE_SHARES = (0.28, 0.32, 0.18, 0.11, 0.11)
"""Grade groups 1 to 5 of the worst core of patients with cancer."""

PSA_MEDIAN = (5.6, 5.9, 6.8, 8.2, 9.5, 14.0)
"""Median PSA in ng/mL: no cancer, then grade groups 1 to 5."""

PSA_LOG_SPREAD = 0.5

VOLUME_MEDIAN = (54.0, 42.0)
"""Median prostate volume in mL: no cancer, cancer."""

VOLUME_LOG_SPREAD = 0.38

PREVALENCE = 0.85
"""Share of patients with cancer at average age and without family history; enriched, as training sets are."""

CANCER_CORE_SHARE = 0.55
"""Probability that a core of a patient with cancer holds cancer; at least one does."""

MISSING_SHARE = 0.03
"""Probability that a patient's PSA is unknown, and that the family history is."""


@dataclass(frozen=True)
class Patient:
    """A patient; unknown values are NaN. Grades hold a grade group per core, 0 for a benign core."""

    patient_id: str
    center: str
    age: float
    psa: float
    psa_density: float
    family_history: float
    grades: tuple[int, ...]


def draw_patient(rng: Generator, number: int, *, params: PhantomParams) -> Patient:
    """Draw a patient: age and family history first, cancer given those, grade, PSA and volume given cancer.

        logit P(cancer) = logit(prevalence) + 0.05 (age - 65) + log(2) family_history

    Source of the numbers: docs/attention/phantom.md.
    """
    age = float(np.clip(round(rng.normal(65, 7.5)), 45, 85))
    family_history = float(rng.random() < 0.12)
    logit = np.log(PREVALENCE / (1 - PREVALENCE)) + 0.05 * (age - 65) + np.log(2) * family_history
    grades = draw_grades(
        rng, has_cancer=bool(rng.random() < 1 / (1 + np.exp(-logit))), params=params
    )
    worst = max(grades)
    psa = float(np.round(PSA_MEDIAN[worst] * np.exp(PSA_LOG_SPREAD * rng.standard_normal()), 1))
    volume = VOLUME_MEDIAN[int(worst > 0)] * np.exp(VOLUME_LOG_SPREAD * rng.standard_normal())
    unknown = rng.random(2) < MISSING_SHARE
    return Patient(
        patient_id=f"P{number + 1:04d}",
        center=f"center_{chr(ord('a') + number % params.centers)}",
        age=age,
        psa=np.nan if unknown[0] else psa,
        psa_density=np.nan if unknown[0] else float(np.round(psa / volume, 3)),
        family_history=np.nan if unknown[1] else family_history,
        grades=grades,
    )


def draw_grades(rng: Generator, *, has_cancer: bool, params: PhantomParams) -> tuple[int, ...]:
    """Draw the grade group of each core: the worst grade in at least one core, 40% of the others a grade lower."""
    low, high = params.cores_per_patient
    cores = int(rng.integers(low, high + 1))
    if not has_cancer:
        return (0,) * cores
    worst = int(rng.choice(5, p=GRADE_SHARES)) + 1
    cancerous = rng.random(cores) < CANCER_CORE_SHARE
    index = int(rng.integers(cores))
    lower = np.maximum(1, worst - (rng.random(cores) < 0.4))
    grades = np.where(cancerous, lower, 0)
    if grades.max() < worst:
        grades[np.argmax(cancerous) if cancerous.any() else index] = worst
    return tuple(int(grade) for grade in grades)
