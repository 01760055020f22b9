"""Correlations inside groups and between examples, against loops and scipy."""

import numpy as np
import pytest
from scipy.stats import pearsonr, rankdata, spearmanr

from grpo_pipeline.pipelines.reward_audit.document import agree_between, agree_within

ONCE = np.ones((1, 12))


def draw(seed: int = 0, *, n: int = 12, size: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Draw a reward and a metric that agree inside groups and disagree between examples; some ties."""
    rng = np.random.default_rng(seed)
    level = rng.normal(size=(n, 1))
    reward = rng.normal(size=(n, size)).round(1)
    return reward + 5 * level, (reward + rng.normal(size=(n, size))).round(1) - 5 * level


def centred(values):
    return np.concatenate([row - row.mean() for row in values])


def test_within_is_the_correlation_of_what_is_left_of_each_group_and_between_that_of_the_means():
    reward, metric = draw()
    # Groups in which one of the two is constant say nothing.
    more = np.vstack([reward, [[1.0] * 5, [1, 2, 3, 4, 5]]]), np.vstack([metric, [[1, 2, 3, 4, 5], [2.0] * 5]])
    for pair in ((reward, metric), more):
        found = agree_within(*pair, np.ones((1, len(pair[0]))))
        assert found["pearson"].value == pytest.approx(pearsonr(centred(reward), centred(metric)).statistic, abs=1e-12)
        ranks = [np.concatenate([rankdata(row) - 3 for row in values]) for values in (reward, metric)]
        assert found["spearman"].value == pytest.approx(pearsonr(*ranks).statistic, abs=1e-12)
        assert found["pearson"].n == found["spearman"].n == 12
    between = agree_between(reward + 1e6, metric, ONCE)
    assert between["pearson"].value == pytest.approx(pearsonr(reward.mean(1), metric.mean(1)).statistic, abs=1e-9)
    assert between["spearman"].value == pytest.approx(spearmanr(reward.mean(1), metric.mean(1)).statistic, abs=1e-12)
    assert between["pearson"].n == 12


def test_unknown_values_leave_only_their_own_samples_out():
    reward, metric = draw()
    reward[0, 1], metric[0, 3], metric[1] = np.nan, np.nan, np.nan
    kept = [(reward[0, [0, 2, 4]], metric[0, [0, 2, 4]]), *((reward[p], metric[p]) for p in range(2, 12))]
    x, y = (centred([pair[side] for pair in kept]) for side in (0, 1))
    found = agree_within(reward, metric, ONCE)["pearson"]
    assert found.value == pytest.approx(pearsonr(x, y).statistic, abs=1e-12)
    assert found.n == 11
    between = agree_between(reward, metric, ONCE)["pearson"]
    means = [(a.mean(), b.mean()) for a, b in kept]
    assert between.value == pytest.approx(pearsonr(*zip(*means, strict=True)).statistic, abs=1e-12)
    assert between.n == 11


def test_weights_repeat_examples():
    reward, metric = draw()
    weights = np.vstack([np.ones(12), np.random.default_rng(1).integers(0, 3, 12)])
    rows = np.repeat(np.arange(12), weights[1].astype(int))
    for correlate in (agree_within, agree_between):
        resampled = correlate(reward, metric, weights)["pearson"].resamples
        repeated = correlate(reward[rows], metric[rows], np.ones((1, len(rows))))["pearson"].value
        assert resampled == pytest.approx([repeated], abs=1e-9)


@pytest.mark.parametrize("correlate", [agree_within, agree_between])
def test_a_metric_that_never_differs_has_no_correlation_and_says_why(correlate):
    reward, metric = draw()
    found = correlate(reward, np.full_like(metric, 0.3), ONCE)["spearman"]
    assert np.isnan(found.value)
    assert found.n == 0
    assert found.reason
    found = correlate(reward, np.full_like(metric, np.nan), np.ones((3, 12)))["pearson"]
    assert np.isnan([found.value, *found.resamples]).all()
