import json

import numpy as np
import pandas as pd
import pytest

from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.bootstrap import Estimate, cluster_weights, describe, paired_difference, percentile_interval

CLUSTERS = pd.Series(["a", "a", "a", "b", "c", "c"], name="patient_id")


def estimate(value, resamples, *, n=10, reason="needs both classes"):
    return Estimate(value=value, resamples=np.asarray(resamples, dtype=float), n=n, reason=reason)


class TestClusterWeights:
    def test_rows_of_a_cluster_share_their_count(self):
        weights = cluster_weights(CLUSTERS, resamples=200, seed=0)
        assert weights.shape == (200, 6)
        np.testing.assert_array_equal(weights[:, [0, 0, 4]], weights[:, [1, 2, 5]])

    def test_each_resample_draws_as_many_clusters_as_there_are(self):
        weights = cluster_weights(CLUSTERS, resamples=200, seed=0)
        np.testing.assert_array_equal(weights[:, [0, 3, 4]].sum(axis=1), 3)

    def test_clusters_are_drawn_with_equal_chance_whatever_their_size(self):
        # each count is Binomial(3, 1/3): mean 1, variance 2/3; 20000 draws put the mean within 5 standard errors = .03
        weights = cluster_weights(CLUSTERS, resamples=20_000, seed=1)
        np.testing.assert_allclose(weights.mean(axis=0), 1.0, atol=0.03)
        np.testing.assert_allclose(weights.var(axis=0), 2 / 3, atol=0.03)

    def test_draws_follow_the_seed_and_not_the_row_order(self):
        order = np.array([5, 2, 0, 3, 1, 4])
        weights = cluster_weights(CLUSTERS, resamples=50, seed=3)
        permuted = cluster_weights(CLUSTERS.iloc[order], resamples=50, seed=3)
        np.testing.assert_array_equal(permuted, weights[:, order])
        assert (cluster_weights(CLUSTERS, resamples=50, seed=4) != weights).any()

    def test_a_row_without_cluster_is_refused(self):
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


def test_percentile_interval_golden():
    # 0..100: 2.5% and 97.5% of the order statistics; undefined resamples do not count
    low, high = percentile_interval(np.r_[np.arange(101.0), np.nan, np.nan])
    assert (low, high) == pytest.approx((2.5, 97.5))


class TestPairedDifference:
    def test_is_taken_resample_by_resample(self):
        difference = paired_difference(estimate(0.8, [0.7, 0.9, np.nan]), estimate(0.5, [0.4, 0.8, 0.1], n=7))
        assert difference.value == pytest.approx(0.3)
        assert difference.n == 7
        np.testing.assert_allclose(difference.resamples, [0.3, 0.1, np.nan])

    def test_needs_the_same_number_of_resamples(self):
        with pytest.raises(ValueError, match="paired estimates must share their resamples, got 2 and 3"):
            paired_difference(estimate(0.0, [0, 0]), estimate(0.0, [0, 0, 0]))


@pytest.mark.parametrize(
    ("found", "clusters", "wanted"),
    [
        (
            estimate(0.5, np.linspace(0, 1, 101)),
            9,
            {"value": 0.5, "ci95": pytest.approx([0.025, 0.975]), "se": pytest.approx(0.2930, abs=1e-4), "n": 10},
        ),
        (
            estimate(np.nan, [np.nan] * 5, n=3),
            9,
            {"value": None, "ci95": None, "n": 3, "reason": "undefined: needs both classes"},
        ),
        (
            estimate(0.5, [0.4, 0.6] * 10 + [np.nan]),
            9,
            {
                "value": 0.5,
                "ci95": pytest.approx([0.4, 0.6]),
                "undefined_resamples": 1,
                "n": 10,
                "se": pytest.approx(0.1, abs=0.01),
            },
        ),
        (
            estimate(0.5, [0.4, 0.6, 0.5, np.nan]),
            9,
            {
                "value": 0.5,
                "ci95": None,
                "n": 10,
                "reason": "no interval: undefined in 1 of 4 resamples (needs both classes)",
                "undefined_resamples": 1,
            },
        ),
        (
            estimate(0.5, [0.5] * 4),
            1,
            {"value": 0.5, "ci95": None, "n": 10, "reason": "no interval: all rows belong to one cluster"},
        ),
    ],
    ids=["defined", "undefined", "a few undefined", "many undefined", "one cluster"],
)
def test_what_is_said_of_an_estimate(found, clusters, wanted):
    entry = describe(found, clusters=clusters, max_undefined=0.1)
    assert entry == wanted
    json.dumps(entry, allow_nan=False)
