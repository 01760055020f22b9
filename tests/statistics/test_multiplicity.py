from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.statistics.bootstrap import Estimate, percentile_interval
from grpo_pipeline.statistics.multiplicity import holm, simultaneous_intervals, two_sided_p


def normal(rng, *, shift=0.0, scale=1.0, size=4000):
    return Estimate(shift, rng.normal(shift, scale, size), 10, "", 20)


@given(st.integers(0, 10_000), st.floats(-4, 4))
def test_the_p_value_counts_the_rarer_side_and_agrees_with_percentile_intervals(seed, shift):
    # 2 * (1 + 1) / (5 + 1); with NaN left out 2 * (1 + 0) / (3 + 1)
    assert two_sided_p(np.array([-1.0, 1, 2, 3, 4])) == pytest.approx(4 / 6)
    assert two_sided_p(np.array([np.nan, 2, 3, np.nan, 4])) == pytest.approx(2 / 4)
    assert (two_sided_p(np.zeros(99)), two_sided_p(np.ones(999))) == (1.0, pytest.approx(2 / 1000))
    resamples = np.random.default_rng(seed).normal(shift, 1.0, 999)
    low, high = percentile_interval(resamples)
    p = two_sided_p(resamples)
    assert p == two_sided_p(-resamples)
    # The two may disagree only where one resample more or less decides.
    assert abs(p - 0.05) <= 2 * 2 / 1000 or (p < 0.05) == (low > 0 or high < 0)


@given(st.dictionaries(st.integers(0, 20), st.floats(0.0001, 1.0), min_size=1, max_size=12))
def test_holm_agrees_with_its_definition(p_values):
    """The adjusted p-value is the largest of (m - j) p_j over the p-values that are not larger, at most 1."""
    # R: p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm")
    adjusted = holm(dict(enumerate([0.01, 0.02, 0.03, 0.04, 0.05])))
    assert list(adjusted.values()) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert holm({}) == {}
    ranked = sorted(p_values, key=p_values.get)
    steps = [(len(ranked) - j) * p_values[name] for j, name in enumerate(ranked)]
    assert holm(p_values) == pytest.approx({name: min(1.0, max(steps[: j + 1])) for j, name in enumerate(ranked)})


def test_simultaneous_intervals_reach_the_known_quantiles():
    rng = np.random.default_rng(0)
    estimate = normal(rng, shift=0.3, scale=2.0)
    found = simultaneous_intervals({"a": estimate})  # one is bounded like one
    spread = estimate.resamples.std(ddof=1)
    assert found.critical == pytest.approx(np.quantile(np.abs(estimate.resamples - 0.3) / spread, 0.95))
    assert found.intervals["a"] == pytest.approx((0.3 - found.critical * spread, 0.3 + found.critical * spread))
    # (2 Phi(c) - 1)^10 = 0.95 at c = 2.800; a quantile of 20 000 draws has a standard error of about 0.013.
    independent = {i: normal(rng, size=20_000) for i in range(10)}
    assert simultaneous_intervals(independent).critical == pytest.approx(2.800, abs=0.05)
    # No end is beyond the range.
    assert simultaneous_intervals({"a": replace(estimate, bounds=(-1.0, 1.0))}).intervals["a"] == (-1.0, 1.0)
    # Undefined resamples are left out, and what does not vary has its exact bound.
    holes = Estimate(0.3, np.where(np.arange(4000) % 2 == 0, np.nan, estimate.resamples), 10, "", 20)
    half = Estimate(0.3, estimate.resamples[1::2], 10, "", 20)
    still = Estimate(0.5, np.full(4000, 0.5), 10, "", 20, bounds=(-1.0, 1.0))
    together = simultaneous_intervals({"a": estimate, "b": holes, "c": still})
    assert together.critical == pytest.approx(simultaneous_intervals({"a": half}).critical)
    # The exact interval at Bonferroni's level of three: u = 1 - (0.05 / 3 / 2)^(1 / 20).
    unseen = 1 - (0.05 / 6) ** (1 / 20)
    assert together.intervals["c"] == pytest.approx((0.5 - 1.5 * unseen, 0.5 + 0.5 * unseen))
    assert np.isnan(simultaneous_intervals({}).critical)
