"""The limit keeps its promise for inputs of new clusters, whatever the inputs of a cluster share; reasons name what deviates."""

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from grpo_pipeline.core.storage.weights import ModelWeights, load_weights, save_weights
from grpo_pipeline.tasks.familiarity import (
    INPUTS,
    Familiarity,
    Statistic,
    conformal_limit,
    fit_familiarity,
    fit_shape,
    left_out_tail,
)

ONE = np.arange


def limit_of(scores, clusters, mass: float) -> float:
    """The smallest score with at most this mass above it, input by input; every cluster weighs the same."""
    names = sorted(set(clusters))

    def above(limit: float) -> Fraction:
        total = Fraction(0)
        for name in names:
            own = [score for score, cluster in zip(scores, clusters, strict=True) if cluster == name]
            total += Fraction(sum(score > limit for score in own), len(own) * len(names))
        return total

    return -math.inf if mass >= 1 else min(score for score in scores if above(score) <= mass)


def left_out_share(scores, clusters, mass: Fraction) -> Fraction:
    """The mean share of a cluster above the limit of the others."""
    names, total = sorted(set(clusters)), Fraction(0)
    for name in names:
        pairs = list(zip(scores, clusters, strict=True))
        own, others = [s for s, c in pairs if c == name], [(s, c) for s, c in pairs if c != name]
        limit = limit_of(*zip(*others, strict=True), mass * len(names) / (len(names) - 1))
        total += Fraction(sum(score > limit for score in own), len(own) * len(names))
    return total


def expected_limit(scores, clusters, rate: Fraction) -> float:
    """The definition by plain loops over levels, clusters and inputs."""
    if len(set(clusters)) == 1:
        return max(scores)
    number, mass = {c: sum(c == other for other in clusters) for c in clusters}, Fraction(0)
    falling, shares = sorted(zip(scores, clusters, strict=True), reverse=True), []
    for _, cluster in falling:
        shares.append(left_out_share(scores, clusters, mass))
        mass += Fraction(1, len(number) * number[cluster])
    within = sum(share <= rate for share in shares)
    if within in (0, len(falling)):
        return falling[max(within - 1, 0)][0]
    (high, _), (low, _) = falling[within - 1], falling[within]
    return high - float((rate - shares[within - 1]) / (shares[within] - shares[within - 1])) * (high - low)


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 5)), min_size=1, max_size=20, unique_by=lambda pair: pair[0]),
    st.sampled_from([Fraction(1, 50), Fraction(1, 20), Fraction(1, 5), Fraction(1, 3)]),
)
@settings(deadline=None, max_examples=60)
def test_the_limit_is_that_of_the_level_which_keeps_the_rate_on_left_out_clusters(pairs, rate):
    scores, clusters = np.array([float(s) for s, _ in pairs]), np.array([c for _, c in pairs])
    found = conformal_limit(scores, clusters, rate=float(rate))
    assert found == pytest.approx(expected_limit(scores.tolist(), clusters.tolist(), rate))


@pytest.mark.parametrize(
    ("count", "alike", "sizes"),  # every pair of them once
    [
        (20, 0.0, (1, 1)), (20, 0.5, (7, 7)), (20, 1.0, (1, 12)), (30, 0.0, (1, 12)), (30, 0.5, (1, 1)), (30, 1.0, (7, 7)),
        (79, 0.0, (7, 7)), (79, 0.5, (1, 12)), (79, 1.0, (1, 1)),
    ],
)  # fmt: skip
def test_the_mean_share_beyond_the_limit_is_five_per_cent_of_new_clusters(count, alike, sizes):
    """Over 400 draws; a new input is standard normal, so that its chance is known. ``alike``: variance that a cluster shares."""
    rng, shares = np.random.default_rng(0), []
    for _ in range(400):
        clusters = np.repeat(np.arange(count), rng.integers(sizes[0], sizes[1] + 1, count))
        scores = np.sqrt(alike) * rng.standard_normal(count)[clusters] + np.sqrt(1 - alike) * rng.standard_normal(len(clusters))
        shares.append(norm.sf(conformal_limit(scores, clusters, rate=0.05)))
    error = np.std(shares) / np.sqrt(len(shares))
    assert 0.04 - 2 * error < np.mean(shares) < 0.05 + 2 * error + 0.0025


def draw(rng: np.random.Generator, clusters: int, *, images: int = 3) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs of patients that share most of what they are; two groups, one of them with heavy tails."""
    own = np.repeat(rng.standard_normal((clusters, 6)), images, axis=0)
    values = own + 0.3 * rng.standard_normal(own.shape)
    return {"a": values[:, :2], "b": np.sinh(values[:, 2:])}, np.repeat(ONE(clusters), images)


STATISTICS = {"a": [Statistic("first", 0.01), Statistic("second", 0.01)], "b": [Statistic("", 0.01)] * 4}


def fit(rng: np.random.Generator, *, train: int = 60, held_out: int = 60) -> Familiarity:
    (trained, first), (rest, second) = draw(rng, train), draw(rng, held_out)
    return fit_familiarity(trained, rest, STATISTICS, clusters=(first, second))


def test_all_groups_together_keep_the_rate_over_patients_like_the_trained_ones():
    """Mean over 60 fits of the share outside of 300 new patients. Its standard error is about 0.002."""
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(60):
        familiarity = fit(rng)
        new, _ = draw(rng, 300, images=1)
        rarities = np.max(list(familiarity.rarities(new).values()), axis=0)
        shares.append(float((rarities > familiarity.told.limit).mean()))
    assert 0.04 < np.mean(shares) <= 0.05 + 2 * np.std(shares) / np.sqrt(60)


def test_the_tail_is_that_of_inputs_which_the_fit_has_not_seen():
    """Five clusters, each of them a fold of its own; Hill's index with five excesses of 0.2 put to those found."""
    trained, clusters = draw(np.random.default_rng(7), 5)
    values, floor = trained["a"], np.array([0.01, 0.01])
    distances = np.concatenate([fit_shape(values[clusters != c], floor).distance(values[clusters == c]) for c in range(5)])
    start = np.quantile(distances, 0.9)
    excess = np.log(distances[distances > start] / start)
    expected = {"start": start, "tail": (len(excess) + 5) / (excess.sum() + 5 * 0.2)}
    assert left_out_tail(values, floor, clusters) == pytest.approx(expected)


def one(a, b=(0.0, 0.0, 0.0, 0.0)) -> dict[str, np.ndarray]:
    return {"a": np.array([a], np.float64), "b": np.array([b], np.float64)}


def test_a_reason_names_the_group_and_the_statistic():
    familiarity = fit(np.random.default_rng(1))
    ordinary, odd, unnamed = (familiarity.judge(x) for x in (one((0, 0)), one((0.5, -30)), one((0, 0), (500, 0, 0, 0))))
    assert (ordinary.is_outside, ordinary.why) == (False, "")
    assert odd.is_outside
    assert odd.why.startswith("a ")
    assert "times the limit (second -30, in training -2." in odd.why
    assert unnamed.why.endswith("times the limit")
    group, limit = familiarity.told.groups["a"], familiarity.told.limit
    at_limit = group.start * np.exp(limit / group.tail)
    assert odd.distance == pytest.approx(familiarity.shapes["a"].distance(np.array([[0.5, -30.0]]))[0] / at_limit)


def test_a_combination_that_never_occurs_is_outside_and_constants_have_a_floor():
    rng = np.random.default_rng(2)
    first, clusters = rng.standard_normal(300), (ONE(200), ONE(100))

    def judge(second, floor, *seen):
        values, names = np.stack([first, second], axis=1), [Statistic("first", 0.01), Statistic("second", floor)]
        familiarity = fit_familiarity({"a": values[:200]}, {"a": values[200:]}, {"a": names}, clusters=clusters)
        return familiarity.judge({"a": np.array([seen])})

    together = judge(100 + first + 0.01 * rng.standard_normal(300), 0.01, 0.9, 98.9)
    assert together.is_outside
    assert together.why.endswith("(each in its range, not so together)")
    near, far = (judge(np.full(300, 7.0), 0.5, 0.0, 7.0 + shift) for shift in (0.1, 10.0))
    assert (near.is_outside, far.is_outside) == (False, True)
    assert "second 17, in training 7 to 7" in far.why


def test_what_is_not_known_of_an_input_is_not_held_against_it():
    """Mahalanobis' distance of the known statistics alone, by the inverse of their own covariance; p stays in the mean."""
    rng = np.random.default_rng(3)
    values = rng.multivariate_normal([0, 0, 0], [[1, 0.8, 0.1], [0.8, 1, 0.3], [0.1, 0.3, 1]], 400)
    shape = fit_shape(values, np.full(3, 0.01))
    z = shape.deviations(np.array([[1.5, 0.0, -2.0]]))[0]
    known = np.linalg.inv(np.linalg.inv(shape.precision)[np.ix_([0, 2], [0, 2])])
    wanted = np.sqrt(z[[0, 2]] @ known @ z[[0, 2]] / 3)
    found = shape.distance(np.array([[1.5, np.nan, -2.0], [1.5, 0.0, -2.0]]))
    assert found == pytest.approx([wanted, np.sqrt(z @ shape.precision @ z / 3)])
    familiarity = fit(np.random.default_rng(1))
    assert "first 9" in familiarity.judge(one((9, np.nan))).why
    assert not familiarity.judge(one((0, np.nan))).is_outside


def test_few_clusters_promise_less_and_say_so_and_none_promise_nothing():
    for clusters, bound in ((4, 0.2), (18, 1 / 19), (19, 0.05), (120, 0.05)):
        told = fit(np.random.default_rng(4), held_out=clusters).told
        assert (told.clusters, told.held_out, told.false_alarms) == (clusters, 3 * clusters, pytest.approx(bound))
    trained, clusters = draw(np.random.default_rng(5), 20)
    nothing = {name: values[:0] for name, values in trained.items()}
    familiarity = fit_familiarity(trained, nothing, STATISTICS, clusters=(clusters, clusters[:0]))
    assert familiarity.told.limit is None
    assert familiarity.judge(one((900, 900))) is None
    familiarity = fit_familiarity(one((1, 2)), one((1, 2)), STATISTICS, clusters=(np.array(["p"]), np.array(["q"])))
    assert familiarity.judge(one((100, 2))).is_outside


def test_it_is_read_back_as_it_was_written(tmp_path: Path):
    familiarity = fit(np.random.default_rng(6))
    weights = ModelWeights({}, {INPUTS: familiarity.told.model_dump(mode="json")}, beside={INPUTS: familiarity.tensors()})
    save_weights(tmp_path / "model", weights)
    assert Familiarity.from_model(load_weights(tmp_path / "model")).judge(one((3, -2))) == familiarity.judge(one((3, -2)))
    assert Familiarity.from_model(ModelWeights({}, {})) is None
    with pytest.raises(ValueError, match=r"the file inputs must hold what the model names, got no 'a.mean'"):
        Familiarity.from_model(replace(weights, beside={}))
    groups = weights.config[INPUTS]["groups"]
    told = weights.config[INPUTS] | {"groups": groups | {"a": groups["b"]}}
    with pytest.raises(ValueError, match=r"the file inputs must hold 4 numbers for a, got \(2,\)"):
        Familiarity.from_model(replace(weights, config={INPUTS: told}))
