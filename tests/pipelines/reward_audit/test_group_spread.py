"""Spread, ties and shares of the variance, against naive loops."""

import numpy as np
import pytest
from tiny_audit import MODEL, PLAN, model_samples

from grpo_pipeline.pipelines.reward_audit.document import find_constant, find_ties, measure_spread
from grpo_pipeline.pipelines.reward_audit.samples import PolicySamples

STYLE = np.array([[0.3, 0.1, 0.0], [0.0, 0.5, 0.2], [0.1, 0.1, 0.1], [0.9, 0.2, 0.4]])


def test_spread_is_that_of_a_loop():
    spread = measure_spread(model_samples(MODEL, style=STYLE), PLAN.weights)
    for p in range(4):
        reward = MODEL[p] + 0.5 * STYLE[p]
        assert spread.std[p] == pytest.approx(np.std(reward, ddof=1), abs=1e-15)
        assert spread.total[p] == pytest.approx(2 * np.var(reward, ddof=1), abs=1e-15)
        for component, values in (("f1", MODEL[p]), ("style", 0.5 * STYLE[p])):
            expected = sum((v - values.mean()) * (r - reward.mean()) for v, r in zip(values, reward, strict=True))
            assert spread.sums[component][p] == pytest.approx(expected, abs=1e-15)
    assert spread.is_constant["style"].tolist() == [False, False, True, False]
    assert spread.is_constant["f1"].tolist() == [False] * 4
    assert not spread.is_tied.any()


def test_a_part_that_does_not_differ_or_has_no_weight_explains_nothing():
    spread = measure_spread(model_samples(MODEL, style=1000.0), PLAN.weights)
    np.testing.assert_allclose(spread.sums["style"], 0.0, atol=1e-12)
    assert spread.is_constant["style"].all()
    style = STYLE.copy()
    style[0, 1] = np.nan
    spread = measure_spread(PolicySamples(MODEL, {"f1": MODEL, "style": style}, {}), {"f1": 1.0, "style": 0.0})
    np.testing.assert_array_equal(spread.sums["style"], 0.0)
    np.testing.assert_allclose(spread.sums["f1"], spread.total, atol=1e-15)


def test_samples_that_were_not_scored_are_left_out():
    f1 = MODEL.copy()
    f1[0, 1], f1[1, :2], f1[2] = np.nan, np.nan, np.nan
    spread = measure_spread(model_samples(f1, style=STYLE), PLAN.weights)
    pair = (MODEL + 0.5 * STYLE)[0, [0, 2]]
    assert spread.std[0] == pytest.approx(abs(pair[0] - pair[1]) / 2**0.5, abs=1e-15)
    assert np.isnan(spread.std[1:3]).all()  # one sample and none: no deviation
    assert spread.total[1:3].tolist() == [0.0, 0.0]
    assert spread.is_tied.tolist() == [False, True, False, False]


def test_parts_tie_up_to_the_rounding_of_float32_and_rewards_as_in_training():
    almost = np.array([[0.3, np.nextafter(np.float32(0.3), np.float32(1.0))]])
    assert find_constant(almost).tolist() == [True]
    assert find_ties(almost).tolist() == [False]
    assert find_ties(np.array([[0.3, 0.3]])).tolist() == [True]
