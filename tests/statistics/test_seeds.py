import numpy as np
import pytest

from grpo_pipeline.statistics.bootstrap import Estimate
from grpo_pipeline.statistics.over_seeds import differences_by_seed, mean_over_seeds, spread


def estimate(value, resamples, n=5, reason="undefined here"):
    return Estimate(value, np.array(resamples, dtype=float), n, reason)


def test_the_mean_is_taken_inside_each_resample():
    found = mean_over_seeds({0: estimate(1.0, [1, 2, 3]), 3: estimate(3.0, [5, 6, 10], n=4)}, resamples=3)
    assert (found.value, found.n) == (2.0, 4)
    assert found.resamples.tolist() == [3.0, 4.0, 6.5]


def test_a_seed_that_is_undefined_makes_the_mean_undefined_for_its_reason():
    found = mean_over_seeds({0: estimate(1.0, [1, 2]), 1: estimate(np.nan, [np.nan, 2], reason="no lesion")}, resamples=2)
    assert np.isnan(found.value)
    assert found.reason == "no lesion"
    assert np.isnan(found.resamples).tolist() == [True, False]


def test_without_a_seed_there_is_no_value():
    found = mean_over_seeds({}, resamples=7)
    assert np.isnan(found.value)
    assert np.isnan(found.resamples).tolist() == [True] * 7
    assert found.n == 0


def test_differences_are_taken_seed_by_seed_where_both_are_there():
    treated = {0: estimate(1.0, [1, 2]), 1: estimate(2.0, [2, 3]), 2: estimate(9.0, [9, 9])}
    control = {1: estimate(0.5, [0, 4]), 0: estimate(0.0, [1, 1]), 5: estimate(7.0, [7, 7])}
    found = differences_by_seed(treated, control)
    assert {seed: (one.value, one.resamples.tolist()) for seed, one in found.items()} == {
        0: (1.0, [0.0, 1.0]),
        1: (1.5, [2.0, -1.0]),
    }


@pytest.mark.parametrize("side", ["treated", "control"])
def test_the_reason_is_that_of_the_undefined_side(side):
    good, bad = {0: estimate(1.0, [1], reason="fine")}, {0: estimate(np.nan, [np.nan], reason="no points")}
    found = differences_by_seed(bad, good) if side == "treated" else differences_by_seed(good, bad)
    assert found[0].reason == "no points"


def test_the_spread_of_three_seeds_of_one_and_of_none():
    three = spread({0: estimate(1.0, []), 1: estimate(2.0, []), 2: estimate(6.0, [])})
    # mean 3, squares 4 + 1 + 9 = 14, / 2
    assert three == {"n": 3, "sd": pytest.approx(7**0.5), "min": 1.0, "max": 6.0, "values": {"0": 1.0, "1": 2.0, "2": 6.0}}
    assert spread({4: estimate(1.0, []), 5: estimate(np.nan, [])}) == {
        "n": 1, "sd": None, "min": 1.0, "max": 1.0, "values": {"4": 1.0},
    }  # fmt: skip
    assert spread({}) == {"n": 0, "sd": None, "min": None, "max": None, "values": {}}
