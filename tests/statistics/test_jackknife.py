import numpy as np
import pytest

from grpo_pipeline.statistics.weighted import linear_resamples


def leave_out(values, statistic):
    return np.asarray([statistic(np.delete(values, place)) for place in range(len(values))])


def test_a_mean_varies_as_its_bootstrap_does():
    generator = np.random.default_rng(0)
    values = generator.random(12)
    weights = generator.multinomial(12, np.full(12, 1 / 12), size=200).astype(float)
    found = linear_resamples(values.mean(), leave_out(values, np.mean), weights)
    np.testing.assert_allclose(found, weights @ values / 12, rtol=0, atol=1e-12)


def test_weights_of_one_give_the_value_and_the_middle_is_there():
    generator = np.random.default_rng(1)
    values = generator.integers(0, 30, size=40)
    share = np.unique(values).size / 40
    without = leave_out(values, lambda rest: np.unique(rest).size / len(rest))
    weights = generator.multinomial(40, np.full(40, 1 / 40), size=4000).astype(float)
    assert linear_resamples(share, without, np.ones((1, 40)))[0] == share
    # A resample repeats values; the share of different ones in it is lower by about a quarter.
    assert linear_resamples(share, without, weights).mean() == pytest.approx(share, abs=0.005)
    assert np.mean([np.unique(np.repeat(values, row.astype(int))).size / 40 for row in weights[:200]]) < share - 0.1


def test_undefined_without_a_unit_and_cut_to_a_share():
    found = linear_resamples(1.0, np.asarray([np.nan]), np.asarray([[1.0], [0.0]]))
    np.testing.assert_array_equal(found, [1.0, np.nan])
    assert linear_resamples(0.9, np.asarray([0.0, 1.0]), np.asarray([[4.0, 0.0]]))[0] == 1.0
