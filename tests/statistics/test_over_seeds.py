"""The interval over seeds and clusters: a sum shown, and how often it holds a truth that is known."""

import numpy as np
import pytest

from grpo_pipeline.statistics.bootstrap import Estimate
from grpo_pipeline.statistics.over_seeds import differences_by_seed, mean_over_seeds, over_seeds, spread

DRAWS, CLUSTERS = 2000, 50


def test_the_sum_of_what_seeds_and_clusters_add():
    # s^2 = 1, S = 3, B = 1/6: V = 1/3 + 1/6 = 1/2; df = 1/4 / (1/9/2 + 1/36/49) = 4.454; t = 2.668; half = 2.668 sqrt(1/2)
    found = over_seeds([1.0, 2.0, 3.0], cluster_variance=1 / 6, clusters=50)
    assert (found["value"], found["sd"], found["seeds"]) == (2.0, 1.0, [1.0, 2.0, 3.0])
    assert found["ci95"] == pytest.approx([2 - 1.8866, 2 + 1.8866], abs=2e-3)
    # Seeds alone: t of two degrees of freedom; equal seeds leave the clusters; one seed has no interval.
    alone = over_seeds([1.0, 2.0, 3.0], cluster_variance=0.0, clusters=50)["ci95"]
    assert alone == pytest.approx([2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5])
    equal = over_seeds([2.0, 2.0, 2.0], cluster_variance=0.25, clusters=100_001)["ci95"]
    assert equal == pytest.approx([2 - 1.96 / 2, 2 + 1.96 / 2], abs=1e-3)
    # Seeds and clusters that all agree: what 12 clusters have not seen, u = 1 - 0.025^(1/12), on the way to either bound.
    unseen = 1 - 0.025 ** (1 / 12)
    agreed = over_seeds([0.5, 0.5], cluster_variance=0.0, clusters=12, bounds=(0.0, 2.0))["ci95"]
    assert agreed == pytest.approx([0.5 - 0.5 * unseen, 0.5 + 1.5 * unseen])
    assert over_seeds([2.0], cluster_variance=0.25, clusters=9)["ci95"] is None
    with pytest.raises(ValueError, match="values must hold at least one seed, got none"):
        over_seeds([], cluster_variance=0.25, clusters=9)


@pytest.mark.parametrize("shared", [True, False], ids=["same_clusters", "own_clusters"])
@pytest.mark.parametrize(("seeds", "luck"), [(3, 0.0), (3, 4.0), (5, 1.0)])
def test_it_holds_the_truth_nearly_as_often_as_it_says(seeds: int, luck: float, shared: bool) -> None:
    """Draw seeds and clusters around 0; ``luck`` is the spread of trainings over that of a test set's mean."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(DRAWS):
        trained = rng.normal(0, luck, seeds)
        rows = rng.normal(0, CLUSTERS**0.5, (1 if shared else seeds, CLUSTERS))
        variance = rows.var(axis=1, ddof=1).mean() / CLUSTERS / (1 if shared else seeds)
        low, high = over_seeds(trained + rows.mean(axis=1), cluster_variance=variance, clusters=rows.size)["ci95"]
        held += low <= 0 <= high
    assert held / DRAWS >= 0.92  # 95 is wanted; a proportion of 2000 draws has a standard error of 0.005


def estimate(value, resamples=(), n=5, reason="undefined here", clusters=40, **changes):
    return Estimate(value, np.array(resamples, dtype=float), n, reason, clusters, **changes)


@pytest.mark.parametrize(
    ("by_seed", "value", "resamples", "n", "reason"),
    [
        # Inside each resample; the fewest rows.
        ({0: estimate(1.0, [1, 2, 3]), 3: estimate(3.0, [5, 6, 10], n=4)}, 2.0, [3.0, 4.0, 6.5], 4, None),
        # A seed that is undefined makes the mean undefined for its reason.
        (
            {0: estimate(1.0, [1, 2, 3]), 1: estimate(np.nan, [np.nan, 2, 5], reason="none")},
            np.nan,
            [np.nan, 2.0, 4.0],
            5,
            "none",
        ),
        ({}, np.nan, [np.nan] * 3, 0, None),
    ],
)
def test_the_mean_over_seeds_is_taken_inside_each_resample(by_seed, value, resamples, n, reason):
    found = mean_over_seeds(by_seed, resamples=3)
    np.testing.assert_array_equal([found.value, *found.resamples, found.n], [value, *resamples, n])
    assert reason in (None, found.reason)


def test_differences_are_taken_seed_by_seed_where_both_are_there():
    treated = {0: estimate(1.0, [1, 2]), 1: estimate(2.0, [2, 3]), 2: estimate(9.0, [9, 9])}
    control = {1: estimate(0.5, [0, 4]), 0: estimate(0.0, [1, 1]), 5: estimate(7.0, [7, 7])}
    found = {seed: (one.value, one.resamples.tolist()) for seed, one in differences_by_seed(treated, control).items()}
    assert found == {0: (1.0, [0.0, 1.0]), 1: (1.5, [2.0, -1.0])}
    good, bad = {0: estimate(1.0, [1], reason="fine")}, {0: estimate(np.nan, [np.nan], reason="no points")}
    for sides in ((good, bad), (bad, good)):  # the reason is that of the undefined side
        assert differences_by_seed(*sides)[0].reason == "no points"


def test_the_spread_of_three_seeds_of_one_and_of_none():
    three = spread({seed: estimate(value) for seed, value in enumerate([1.0, 2.0, 6.0])})
    # mean 3, squares 4 + 1 + 9 = 14, / 2
    assert three == {"n": 3, "sd": pytest.approx(7**0.5), "min": 1.0, "max": 6.0, "values": {"0": 1.0, "1": 2.0, "2": 6.0}}
    two = spread({1: estimate(1.0), 7: estimate(2.0)})
    assert (two["n"], two["sd"]) == (2, pytest.approx(0.5**0.5))
    one = spread({4: estimate(1.0), 5: estimate(np.nan)})
    assert one == {"n": 1, "sd": None, "min": 1.0, "max": 1.0, "values": {"4": 1.0}}
    assert spread({}) == {"n": 0, "sd": None, "min": None, "max": None, "values": {}}
