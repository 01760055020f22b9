"""The interval over seeds and clusters: a sum shown, and how often it holds a truth that is known."""

import numpy as np
import pytest

from grpo_pipeline.statistics.over_seeds import over_seeds

DRAWS, CLUSTERS = 2000, 50


def test_the_sum() -> None:
    # s^2 = 1, S = 3, B = 1/6: V = 1/3 + 1/6 = 1/2; df = 1/4 / (1/9/2 + 1/36/49) = 4.454; t = 2.668; half = 2.668 sqrt(1/2)
    found = over_seeds([1.0, 2.0, 3.0], cluster_variance=1 / 6, clusters=50)
    assert (found["value"], found["sd"], found["seeds"]) == (2.0, 1.0, [1.0, 2.0, 3.0])
    assert found["ci95"] == pytest.approx([2 - 1.8866, 2 + 1.8866], abs=2e-3)


def test_seeds_alone_give_the_t_interval() -> None:
    found = over_seeds([1.0, 2.0, 3.0], cluster_variance=0.0, clusters=50)
    assert found["ci95"] == pytest.approx([2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5])  # t of two degrees of freedom


def test_equal_seeds_leave_the_clusters() -> None:
    found = over_seeds([2.0, 2.0, 2.0], cluster_variance=0.25, clusters=100_001)
    assert found["ci95"] == pytest.approx([2 - 1.96 / 2, 2 + 1.96 / 2], abs=1e-3)


def test_one_seed_has_no_interval_and_none_is_refused() -> None:
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
        values = trained + rows.mean(axis=1)
        variance = rows.var(axis=1, ddof=1).mean() / CLUSTERS / (1 if shared else seeds)
        low, high = over_seeds(values, cluster_variance=variance, clusters=rows.size)["ci95"]
        held += low <= 0 <= high
    assert held / DRAWS >= 0.92  # 95 is wanted; a proportion of 2000 draws has a standard error of 0.005
