import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance

from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.weighted import wasserstein_1

NUMBERS = st.lists(st.integers(-20, 20).map(lambda number: number / 4), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(values=NUMBERS, reference=NUMBERS, seed=st.integers(0, 1000))
def test_agrees_with_scipy_on_the_repeated_table(values, reference, seed):
    values, reference = np.asarray(values), np.asarray(reference)
    weights = np.random.default_rng(seed).integers(0, 4, size=(5, len(values))).astype(float)
    found = wasserstein_1(values, weights, reference)
    for row, distance in zip(weights.astype(int), found, strict=True):
        repeated = np.repeat(values, row)
        if repeated.size:
            assert distance == pytest.approx(wasserstein_distance(repeated, reference), abs=1e-9)
        else:
            assert np.isnan(distance)


def test_blocks_change_nothing(monkeypatch):
    generator = np.random.default_rng(0)
    values, reference = generator.normal(size=30), generator.normal(size=50)
    weights = generator.integers(0, 3, size=(17, 30)).astype(float)
    whole = wasserstein_1(values, weights, reference)
    monkeypatch.setattr(weighted, "BLOCK", 160)
    np.testing.assert_allclose(wasserstein_1(values, weights, reference), whole, rtol=0, atol=1e-12)
