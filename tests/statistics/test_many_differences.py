"""Many differences at once, of one seed and of several, from the formulas; and what a metric's value rests on."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from grpo_pipeline.statistics.bootstrap import Estimate
from grpo_pipeline.statistics.metric import Metric
from grpo_pipeline.statistics.multiplicity import cut
from grpo_pipeline.statistics.over_seeds import correct_for_number, describe_seeds
from grpo_pipeline.statistics.seed_interval import SeedMean, mean_of_seeds

RESAMPLES = 59


def estimate(value: float, seed: int, *, width: float, clusters: int = 20) -> Estimate:
    resamples = np.random.default_rng(seed).normal(value, width, RESAMPLES)
    return Estimate(value, resamples, 30 + seed, "undefined here", clusters)


GAPS = {
    "several": {0: estimate(0.9, 1, width=0.2), 3: estimate(0.5, 2, width=0.3, clusters=14), 8: estimate(0.6, 3, width=0.3)},
    "single": {0: estimate(0.35, 4, width=0.2)},
    "other": {0: estimate(-0.1, 5, width=0.1), 3: estimate(-0.11, 6, width=0.1)},
}


def satterthwaite(values: list[float], variance: float, clusters: int) -> tuple[float, float]:
    """Return the standard error and the degrees of freedom."""
    between = sum((value - sum(values) / len(values)) ** 2 for value in values) / (len(values) - 1) / len(values)
    lost = between**2 / (len(values) - 1) + variance**2 / (clusters - 1)
    return math.sqrt(between + variance), (between + variance) ** 2 / lost


def test_p_values_and_intervals_of_many_hold_the_luck_of_the_seeds() -> None:
    found, critical = correct_for_number(GAPS, resamples=RESAMPLES)
    mean = {name: sum(one.value for one in gap.values()) / len(gap) for name, gap in GAPS.items()}
    draws = {name: sum(one.resamples for one in gap.values()) / len(gap) for name, gap in GAPS.items()}
    error = {name: math.sqrt(sum((draws[name] - draws[name].mean()) ** 2) / (RESAMPLES - 1)) for name in GAPS}
    furthest = [max(abs(draws[name][b] - mean[name]) / error[name] for name in GAPS) for b in range(RESAMPLES)]
    assert critical == pytest.approx(np.quantile(furthest, 0.95))
    p_values = {}
    for name, gap in GAPS.items():
        sides = min((draws[name] <= 0).sum(), (draws[name] >= 0).sum())
        p = min(1.0, 2 * (1 + sides) / (RESAMPLES + 1))
        reach = critical * error[name]
        if len(gap) > 1:
            clusters = min(one.clusters for one in gap.values())
            both, degrees = satterthwaite([one.value for one in gap.values()], error[name] ** 2, clusters)
            p = max(p, 2 * student.sf(abs(mean[name]) / both, degrees))
            reach = max(reach, both * student.ppf(norm.cdf(critical), degrees))
        p_values[name] = p
        assert found[name]["p"] == pytest.approx(p)
        assert found[name]["ci95_simultaneous"] == pytest.approx([mean[name] - reach, mean[name] + reach])
    # Holm: the least three times, the next twice and no less than it, the largest once and no less.
    least, middle, largest = sorted(p_values, key=lambda name: p_values[name])
    wanted = {least: 3 * p_values[least]}
    wanted[middle] = max(wanted[least], 2 * p_values[middle])
    wanted[largest] = max(wanted[middle], p_values[largest])
    assert {name: entry["p_holm"] for name, entry in found.items()} == pytest.approx({n: min(1, p) for n, p in wanted.items()})


def test_a_lone_difference_is_not_corrected_and_constant_ones_are_by_bonferroni() -> None:
    alone, critical = correct_for_number({"single": GAPS["single"]}, resamples=RESAMPLES)
    assert alone["single"]["p_holm"] == alone["single"]["p"]
    assert critical > 0
    same = {name: {0: Estimate(1.0, np.ones(RESAMPLES), 9, "", 12, (-1.0, 1.0))} for name in ("one", "two")}
    found, critical = correct_for_number(same, resamples=RESAMPLES)
    assert np.isnan(critical)
    # u = 1 - (0.025 / 2)^(1/12), from (1 - u) - u up to 1; p is the sign test's 2 * 0.5^12, and twice that.
    unseen = 1 - 0.0125 ** (1 / 12)
    for entry in found.values():
        assert entry["ci95_simultaneous"] == pytest.approx([1 - 2 * unseen, 1.0])
        assert (entry["p"], entry["p_holm"]) == pytest.approx((2 * 0.5**12, 4 * 0.5**12))


def test_the_interval_of_seeds_is_never_inside_that_of_clusters() -> None:
    found = describe_seeds(GAPS["several"], resamples=RESAMPLES)
    draws = sum(one.resamples for one in GAPS["several"].values()) / 3
    low, high = np.quantile(draws, [0.025, 0.975])
    assert found["ci95_clusters"] == pytest.approx([low, high])
    both, degrees = satterthwaite([0.9, 0.5, 0.6], draws.var(ddof=1), 14)
    reach = both * student.ppf(0.975, degrees)
    assert found["ci95"] == pytest.approx([min(low, 2 / 3 - reach), max(high, 2 / 3 + reach)])
    assert found["seeds"]["values"] == {"0": 0.9, "3": 0.5, "8": 0.6}
    assert (found["seeds"]["min"], found["seeds"]["max"], found["seeds"]["n"], found["n"]) == (0.5, 0.9, 3, 31)
    # Two seeds far apart leave one degree of freedom: no interval over seeds, that over clusters stays.
    apart = {0: estimate(9.0, 1, width=0.01), 1: estimate(0.0, 2, width=0.01)}
    told = describe_seeds(apart, resamples=RESAMPLES)
    assert (told["ci95"], told["reason"]) == (
        None, "no interval: too few seeds, 2 that differ by more than the clusters explain",
    )  # fmt: skip
    assert told["ci95_clusters"][0] < 4.5 < told["ci95_clusters"][1]
    alone = describe_seeds(GAPS["single"], resamples=RESAMPLES)
    assert alone["ci95"] == alone["ci95_clusters"]
    # Exactly two degrees of freedom are enough: three seeds, and clusters that add nothing.
    assert mean_of_seeds([1.0, 2.0, 4.0], cluster_variance=0.0, clusters=9) is not None
    assert mean_of_seeds([1.0, 2.0], cluster_variance=0.0, clusters=9) is None


def test_on_the_scale_of_the_logit_p_says_what_the_interval_says() -> None:
    # Range [-2, 1], value 0.4: x = ln(2.4 / 0.6) = ln 4, slope 1 / 2.4 + 1 / 0.6 = 25 / 12; 0 lies at ln 2.
    mean = SeedMean(0.4, 0.1, 5.0, (-2.0, 1.0))
    reach = student.ppf(0.95, 5) * 0.1 * 25 / 12
    ends = [-2 + 3 / (1 + math.exp(-(math.log(4) + side * reach))) for side in (-1, 1)]
    assert mean.interval(0.9) == pytest.approx(tuple(ends))
    assert mean.p_value() == pytest.approx(2 * student.sf(math.log(2) / (25 / 12) / 0.1, 5))
    # The value at an end of its range, and a range with one end: no such scale, cut to the range.
    for bounds, value, wanted in (((0.0, 1.0), 1.0, (1 - 0.1 * student.ppf(0.975, 5), 1.0)), ((0.0, math.inf), 0.1, None)):
        low, high = SeedMean(value, 0.1, 5.0, bounds).interval()
        assert (low, high) == pytest.approx(wanted or (0.0, 0.1 + 0.1 * student.ppf(0.975, 5)))
    assert SeedMean(-0.2, 0.1, 5.0, (-math.inf, math.inf)).p_value() == pytest.approx(2 * student.sf(2.0, 5))
    # An interval holds its own value, though it lie beyond the range.
    assert cut(1.5, 1.0, (0.0, 1.0)) == (0.5, 1.5)
    assert cut(-0.5, 1.0, (0.0, 1.0)) == (-0.5, 0.5)


def test_a_value_rests_on_the_clusters_of_its_smallest_side() -> None:
    rows = pd.DataFrame({"farm": [*"aabbccde"], "sick": [1, 0, 0, 1, 0, 0, 0, 1], "size": [1, 1, 2, 2, 2, 2, 2, 2]})
    metric = Metric(
        "Title", "higher", "",
        usable=lambda rows: rows.index.to_numpy() < 7, compute=lambda rows, weights: weights.mean(1),
        size=lambda rows: rows["farm"].nunique(), sides=lambda rows: rows[["sick", "size"]].to_numpy().T,
    )  # fmt: skip
    # Without the last row, and its farm: sick are cows of a and b, sound ones of all four; size 1 in a alone, size 2 in b, c, d.
    assert (metric.count(rows), metric.count_clusters(rows, "farm")) == (4, 1)
    assert metric.count_clusters(rows.assign(size=1), "farm") == 2
    assert metric.count_clusters(rows.head(0), "farm") == 0


def test_of_seeds_that_no_resample_changes_their_own_spread_is_told() -> None:
    constant = {seed: Estimate(value, np.full(RESAMPLES, value), 9, "", 12) for seed, value in ((0, 1.0), (1, 2.0), (5, 3.0))}
    found = describe_seeds(constant, resamples=RESAMPLES)
    reach = student.ppf(0.975, 2) / math.sqrt(3)  # a deviation of 1 over three seeds
    assert found["ci95"] == pytest.approx([2 - reach, 2 + reach])
    assert found["ci95_clusters"] == [2.0, 2.0]
