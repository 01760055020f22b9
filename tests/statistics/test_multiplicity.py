import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.statistics.bootstrap import Estimate, holm, percentile_interval, simultaneous_intervals, two_sided_p

P_VALUES = st.dictionaries(st.integers(0, 20), st.floats(0.0001, 1.0), min_size=1, max_size=12)


def normal(rng, *, shift=0.0, scale=1.0, size=4000):
    return Estimate(shift, rng.normal(shift, scale, size), 10, "")


def test_the_p_value_counts_the_rarer_side():
    # 2 * (1 + 1) / (5 + 1); with NaN left out 2 * (1 + 0) / (3 + 1)
    assert two_sided_p(np.array([-1.0, 1, 2, 3, 4])) == pytest.approx(4 / 6)
    assert two_sided_p(np.array([np.nan, 2, 3, np.nan, 4])) == pytest.approx(2 / 4)
    assert two_sided_p(np.zeros(99)) == 1.0
    assert two_sided_p(np.ones(999)) == pytest.approx(2 / 1000)


@given(st.integers(0, 10_000), st.floats(-4, 4))
def test_the_p_value_says_what_the_percentile_interval_says(seed, shift):
    resamples = np.random.default_rng(seed).normal(shift, 1.0, 999)
    low, high = percentile_interval(resamples)
    p = two_sided_p(resamples)
    assert p == two_sided_p(-resamples)
    # The two may disagree only where one resample more or less decides.
    if abs(p - 0.05) > 2 * 2 / 1000:
        assert (p < 0.05) == (low > 0 or high < 0)


def test_holm_on_known_examples():
    # R: p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm")
    adjusted = holm(dict(enumerate([0.01, 0.02, 0.03, 0.04, 0.05])))
    assert list(adjusted.values()) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    # sorted: 4 * 0.005, 3 * 0.01, 2 * 0.03, max(0.06, 1 * 0.04)
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def rejected_step_by_step(p_values, alpha):
    """Holm's procedure as it is told: go up from the smallest p-value until one is too large for what is left."""
    left, rejected = sorted(p_values.items(), key=lambda item: item[1]), set()
    while left and left[0][1] <= alpha / len(left):
        rejected.add(left.pop(0)[0])
    return rejected


@given(P_VALUES, st.floats(0.001, 0.5))
def test_holm_rejects_what_the_procedure_rejects(p_values, alpha):
    adjusted = holm(p_values)
    assert {name for name, p in adjusted.items() if p <= alpha * (1 - 1e-12)} <= rejected_step_by_step(p_values, alpha)
    assert rejected_step_by_step(p_values, alpha) <= {name for name, p in adjusted.items() if p <= alpha * (1 + 1e-12)}
    assert all(adjusted[name] >= p for name, p in p_values.items())


def test_one_interval_is_bounded_like_one():
    estimate = normal(np.random.default_rng(0), shift=0.3, scale=2.0)
    found = simultaneous_intervals({"a": estimate})
    distance = np.abs(estimate.resamples - 0.3) / estimate.resamples.std(ddof=1)
    assert found.critical == pytest.approx(np.quantile(distance, 0.95))
    reach = found.critical * estimate.resamples.std(ddof=1)
    assert found.intervals["a"] == pytest.approx((0.3 - reach, 0.3 + reach))


def test_independent_differences_reach_the_known_quantile():
    rng = np.random.default_rng(0)
    estimates = {i: normal(rng, size=20_000) for i in range(10)}
    # (2 Phi(c) - 1)^10 = 0.95 at c = 2.800; a quantile of 20 000 draws has a standard error of about 0.013.
    assert simultaneous_intervals(estimates).critical == pytest.approx(2.800, abs=0.05)


def test_undefined_resamples_and_constant_differences():
    estimate = normal(np.random.default_rng(0))
    holes = Estimate(0.0, np.where(np.arange(4000) % 2 == 0, np.nan, estimate.resamples), 10, "")
    half = Estimate(0.0, estimate.resamples[1::2], 10, "")
    together = simultaneous_intervals({"a": estimate, "b": holes, "c": Estimate(0.5, np.full(4000, 0.5), 10, "")})
    assert together.critical == pytest.approx(simultaneous_intervals({"a": half}).critical)
    assert together.intervals["c"] == (0.5, 0.5)
    assert np.isnan(simultaneous_intervals({}).critical)
