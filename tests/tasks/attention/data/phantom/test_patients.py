import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from grpo_pipeline.tasks.attention.data.phantom.params import PhantomParams
from grpo_pipeline.tasks.attention.data.phantom.patients import draw_grades, draw_patient

PARAMS = PhantomParams()


@pytest.fixture(scope="module")
def patients():
    rng = np.random.default_rng(0)
    return [draw_patient(rng, number, params=PARAMS) for number in range(3000)]


def has_cancer(patients):
    return np.array([max(patient.grades) > 0 for patient in patients])


def test_prevalence_and_grades(patients):
    assert has_cancer(patients).mean() == pytest.approx(0.85, abs=0.03)
    worst = np.array([max(patient.grades) for patient in patients])
    shares = np.bincount(worst, minlength=6)[1:] / (worst > 0).sum()
    np.testing.assert_allclose(shares, (0.28, 0.32, 0.18, 0.11, 0.11), atol=0.03)


def test_clinical_values_tell_as_much_as_the_literature_says(patients):
    limits = {"age": (0.55, 0.64), "psa": (0.56, 0.68), "psa_density": (0.66, 0.78), "family_history": (0.505, 0.55)}
    for name, (low, high) in limits.items():
        values = np.array([getattr(patient, name) for patient in patients])
        known = ~np.isnan(values)
        assert low < roc_auc_score(has_cancer(patients)[known], values[known]) < high
    worst, psa = np.array([max(p.grades) for p in patients]), np.array([p.psa for p in patients])
    medians = [np.nanmedian(psa[worst == grade]) for grade in range(6)]
    np.testing.assert_allclose(medians, (5.6, 5.9, 6.8, 8.2, 9.5, 14.0), rtol=0.12)


def test_grades_of_a_patient():
    rng = np.random.default_rng(0)
    drawn = [draw_grades(rng, has_cancer=True, params=PARAMS) for _ in range(2000)]
    assert {len(grades) for grades in drawn} == {6, 7, 8}
    for grades in drawn:
        found = {grade for grade in grades if grade}
        assert found
        assert max(found) - min(found) <= 1
    share = np.mean([np.mean(np.array(grades) > 0) for grades in drawn])
    assert share == pytest.approx(0.55, abs=0.02)
    assert draw_grades(rng, has_cancer=False, params=PARAMS) in {(0,) * 6, (0,) * 7, (0,) * 8}


def test_unknown_psa_leaves_its_density_unknown(patients):
    unknown = np.isnan([patient.psa for patient in patients])
    assert unknown.mean() == pytest.approx(0.03, abs=0.01)
    np.testing.assert_array_equal(unknown, np.isnan([patient.psa_density for patient in patients]))
