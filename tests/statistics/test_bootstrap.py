import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.bootstrap import (
    Estimate,
    cluster_weights,
    describe,
    exact_interval,
    paired_difference,
    percentile_interval,
)
from grpo_pipeline.statistics.multiplicity import p_value
from grpo_pipeline.statistics.wording import side_of

approx = pytest.approx
CLUSTERS = pd.Series(["a", "a", "a", "b", "c", "c"], name="patient_id")


def estimate(value, resamples, *, n=10, reason="needs both classes", clusters=12, **changes):
    return Estimate(value, np.asarray(resamples, dtype=float), n, reason, clusters, **changes)


def test_clusters_are_drawn_whole_with_equal_chance_whatever_the_order_of_rows():
    weights = cluster_weights(CLUSTERS, resamples=20_000, seed=1)
    assert weights.shape == (20_000, 6)
    np.testing.assert_array_equal(weights[:, [0, 0, 4]], weights[:, [1, 2, 5]])
    np.testing.assert_array_equal(weights[:, [0, 3, 4]].sum(axis=1), 3)  # as many clusters as there are
    # each count is Binomial(3, 1/3): mean 1, variance 2/3; 20000 draws put the mean within 5 standard errors = .03
    np.testing.assert_allclose(weights.mean(axis=0), 1.0, atol=0.03)
    np.testing.assert_allclose(weights.var(axis=0), 2 / 3, atol=0.03)
    drawn = numpy_generator(1, Stream.BOOTSTRAP).multinomial(3, [1 / 3] * 3, size=20_000)  # of the seed itself
    np.testing.assert_array_equal(weights, drawn[:, [0, 0, 0, 1, 2, 2]])
    order = np.array([5, 2, 0, 3, 1, 4])
    np.testing.assert_array_equal(cluster_weights(CLUSTERS.iloc[order], resamples=20_000, seed=1), weights[:, order])
    assert (cluster_weights(CLUSTERS, resamples=20_000, seed=4) != weights).any()
    with pytest.raises(ValueError, match=r"patient_id must be given for every row, got an empty cell in row 1"):
        cluster_weights(pd.Series(["a", None, "b"], name="patient_id"), resamples=5, seed=0)


def coverage(*, clustered, trials=300, clusters=30, size=8):
    """Share of trials whose 95% interval of the mean holds the truth (0); cores of a patient share an offset."""
    generator = np.random.default_rng(7)
    names = pd.Series(np.repeat([f"p{i:02d}" for i in range(clusters)], size), name="patient_id")
    units = names if clustered else pd.Series([f"r{i:03d}" for i in range(len(names))], name="row")
    weights = cluster_weights(units, resamples=300, seed=0)
    held = 0
    for _ in range(trials):
        values = np.repeat(generator.normal(size=clusters), size) + generator.normal(scale=0.5, size=len(names))
        low, high = percentile_interval(weighted.mean(values, weights))
        held += low <= 0 <= high
    return held / trials


def test_clustered_intervals_cover_and_row_wise_ones_do_not():
    # 300 trials: a true coverage of 0.93 (30 clusters) stays inside 0.93 +- 3 * 0.015
    assert 0.88 < coverage(clustered=True) < 0.98
    # ignoring the clusters divides the variance by about 8: nominal 95% becomes about 55%
    assert coverage(clustered=False) < 0.7


def test_intervals_and_paired_differences_are_taken_resample_by_resample():
    # 0..100: 2.5% and 97.5% of the order statistics; undefined resamples do not count
    assert percentile_interval(np.r_[np.arange(101.0), np.nan, np.nan]) == pytest.approx((2.5, 97.5))
    treated = estimate(0.8, [0.7, 0.9, np.nan], clusters=30, bounds=(0.0, 1.0))
    difference = paired_difference(treated, estimate(0.5, [0.4, 0.8, 0.1], n=7, bounds=(-3.0, 2.0)))
    assert (difference.value, difference.n, difference.clusters) == (pytest.approx(0.3), 7, 12)
    assert difference.bounds == (-2.0, 4.0)
    assert paired_difference(treated, estimate(0.5, [0.0] * 3, reason="another")).reason == "needs both classes"
    np.testing.assert_allclose(difference.resamples, [0.3, 0.1, np.nan])
    with pytest.raises(ValueError, match="paired estimates must share their resamples, got 2 and 3"):
        paired_difference(estimate(0.0, [0, 0]), estimate(0.0, [0, 0, 0]))


FEW = "no interval: {}, fewer than 10"


@pytest.mark.parametrize(
    ("found", "clusters", "wanted"),
    [
        (estimate(0.5, np.linspace(0, 1, 101)), 10,
         {"value": 0.5, "ci95": approx([0.025, 0.975]), "se": approx(0.2930, abs=1e-4), "n": 10}),
        (estimate(np.nan, [np.nan] * 5, n=3), 9,
         {"value": None, "ci95": None, "n": 3, "reason": "undefined: needs both classes"}),
        (estimate(0.5, [0.4, 0.6] * 10 + [np.nan]), 10,
         {"value": 0.5, "ci95": approx([0.4, 0.6]), "undefined_resamples": 1, "n": 10, "se": approx(0.1, abs=0.01)}),
        (estimate(0.5, [0.4, 0.6, 0.5, np.nan]), 10,
         {"value": 0.5, "ci95": None, "n": 10, "undefined_resamples": 1,
          "reason": "no interval: undefined in 1 of 4 resamples (needs both classes)"}),
        # Undefined in exactly the share that may be: 2 of 20.
        (estimate(0.5, [0.4, 0.6] * 9 + [np.nan] * 2), 10,
         {"value": 0.5, "ci95": approx([0.4, 0.6]), "undefined_resamples": 2, "n": 10, "se": approx(0.1, abs=0.01)}),
        # An interval holds its own value, wherever the resamples lie.
        (estimate(0.036, np.linspace(0.037, 0.091, 101)), 10,
         {"value": 0.036, "ci95": [0.036, approx(0.037 + 0.975 * 0.054)], "se": approx(0.01582, abs=1e-5), "n": 10}),
        (estimate(0.5, np.linspace(0, 1, 101)), 9, {"value": 0.5, "ci95": None, "n": 10, "reason": FEW.format("9 clusters")}),
        (estimate(0.5, [0.5] * 4), 1, {"value": 0.5, "ci95": None, "n": 10, "reason": FEW.format("1 cluster")}),
        (estimate(7.0, [7.0] * 4), 10,
         {"value": 7.0, "ci95": [7.0, 7.0], "n": 10, "se": 0.0, "note": "every resample gives this value: nothing bounds it"}),
    ],
)  # fmt: skip
def test_what_is_said_of_an_estimate(found, clusters, wanted):
    entry = describe(replace(found, clusters=clusters))
    assert entry == wanted
    json.dumps(entry, allow_nan=False)


@pytest.mark.parametrize("clusters", [10, 24, 316])
def test_what_no_resample_changes_has_the_exact_bound(clusters):
    """All right of all: Clopper and Pearson's interval, from scipy; in words where it comes from."""
    found = estimate(1.0, [1.0] * 50, clusters=clusters, bounds=(0.0, 1.0))
    entry = describe(found)
    exact = binomtest(clusters, clusters).proportion_ci(0.95, method="exact")
    assert entry["ci95"] == approx([exact.low, 1.0])
    assert entry["note"] == f"every resample gives this value: exact bound of {clusters} clusters"
    none = describe(replace(found, value=0.0, resamples=np.zeros(50)))
    assert none["ci95"] == approx([0.0, 1 - exact.low])
    # In the middle of [-1, 3], with u = 1 - 0.025^(1/C) at either end: (1 - u) 0.5 - u and (1 - u) 0.5 + 3 u.
    unseen = 1 - 0.025 ** (1 / clusters)
    assert exact_interval(0.5, (-1.0, 3.0), clusters=clusters) == approx((0.5 - 1.5 * unseen, 0.5 + 2.5 * unseen))
    # What has no end on one side says nothing of the other.
    for bounds in ((-1.0, np.inf), (-np.inf, 3.0)):
        assert exact_interval(0.5, bounds, clusters=clusters) == (0.5, 0.5)


def test_resamples_vary_where_they_differ_by_more_than_rounding():
    # Rounding is 1e-12 + 1e-9 of the value: 1e-6 beside 1000, 1e-12 beside 0; undefined ones do not count.
    for value, apart, varies in ((1000.0, 2e-6, True), (1000.0, 5e-7, False), (0.0, 2e-12, True), (0.0, 5e-13, False)):
        assert estimate(value, [value, value + apart, np.nan]).varies == varies
    assert not estimate(np.nan, [np.nan] * 3).varies


@pytest.mark.parametrize(("value", "bounds"), [(1.0, (-1.0, 1.0)), (-1.0, (-1.0, 1.0)), (0.2, (-1.0, 1.0)), (0.3, (-2.0, 1.0))])
def test_the_p_value_of_what_no_resample_changes_agrees_with_its_bound(value, bounds):
    for clusters in range(10, 60):
        found = estimate(value, [value] * 50, clusters=clusters, bounds=bounds)
        p = p_value(found)
        assert (p < 0.05) == (side_of(describe(found)) != 0)
        if abs(value) == 1:  # every cluster is won, or lost: the sign test
            assert p == approx(binomtest(clusters, clusters, 0.5).pvalue)
    assert p_value(estimate(0.0, [0.0] * 50, bounds=bounds)) == 1.0
