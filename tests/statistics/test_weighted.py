import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    cohen_kappa_score,
    roc_auc_score,
    roc_curve,
)

from grpo_pipeline.statistics import linear_resampling, wasserstein, weighted

RESAMPLES = 25


def table(*, seed, n=60, ties=True):
    generator = np.random.default_rng(seed)
    is_positive = generator.random(n) < 0.35
    scores = np.clip(generator.normal(size=n) * 0.2 + 0.4 + 0.15 * is_positive, 0, 1)
    weights = generator.integers(0, 4, size=(RESAMPLES, n)).astype(float)  # their sums differ, too
    return (np.round(scores, 1) if ties else scores), is_positive, weights


def best_sensitivity(level):
    """The highest point of the ROC curve that has the specificity."""

    def statistic(y, scores, sample_weight):
        false_positives, true_positives, _ = roc_curve(y, scores, sample_weight=sample_weight, drop_intermediate=False)
        return true_positives[1 - false_positives >= level - 1e-12].max()

    return statistic


def graded(scores, is_positive):
    """Predicted and true grades, 0 to 3."""
    return (4 * scores).astype(int).clip(0, 3), (3 * scores + 0.7 * is_positive).astype(int).clip(0, 3)


def sensitivity(level):
    return lambda scores, y, weights: weighted.sensitivity_at_specificity(scores, y, weights, level=level)


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (weighted.auroc, roc_auc_score),
        (weighted.average_precision, average_precision_score),
        (lambda scores, y, weights: weighted.mean((scores - y) ** 2, weights), brier_score_loss),
        *((sensitivity(level), best_sensitivity(level)) for level in (0.6, 0.8, 0.95)),
    ],
)
def test_agrees_with_scikit_learn(ours, theirs, seed, ties):
    scores, y, weights = table(seed=seed, ties=ties)
    expected = [theirs(y, scores, sample_weight=w) for w in weights]
    if theirs is not brier_score_loss:  # a resample with one class is undefined and leaves the others alone
        weights[2:5:2], expected[2], expected[4] = [y * weights[2], ~y * weights[4]], np.nan, np.nan
    np.testing.assert_allclose(ours(scores, y, weights), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "statistic",
    [
        weighted.auroc,
        weighted.average_precision,
        sensitivity(0.8),
        lambda s, y, w: weighted.calibration_error(s, y, w, bins=7),
        lambda s, y, w: weighted.mean(s, w),
        lambda s, y, w: weighted.mean_ratio(s, s + y, w),
        lambda s, y, w: weighted.balanced_accuracy(*graded(s, y), w, classes=4),
        lambda s, y, w: weighted.quadratic_kappa(*graded(s, y), w, classes=4),
    ],
)
def test_a_weight_is_a_number_of_repetitions(statistic):
    scores, y, weights = table(seed=9)
    for one, w in zip(statistic(scores, y, weights), weights, strict=True):
        rows = np.repeat(np.arange(len(y)), w.astype(int))
        np.testing.assert_allclose(one, statistic(scores[rows], y[rows], np.ones((1, len(rows))))[0], rtol=1e-12)


# negatives .1 .2 .3 .4 .9, positives .35 .45 .5 .95 .96
TEN = ([0.1, 0.2, 0.3, 0.4, 0.9, 0.35, 0.45, 0.5, 0.95, 0.96], [0] * 5 + [1] * 5)
# negatives .1 .2 .3 .5 .5, positives .5 .9: t = .5 has specificity 3/5 only, so 80% needs t = .9 -> 1 / 2
TIES = ([0.1, 0.2, 0.3, 0.5, 0.5, 0.5, 0.9], [0] * 5 + [1] * 2)
# 14 of 25 negatives lie below the only positive; 0.56 * 25 = 14.000000000000002
BINARY = ([*np.linspace(0.01, 0.4, 14), 0.5, *np.linspace(0.6, 0.9, 11)], [0] * 14 + [1] + [0] * 11)


@pytest.mark.parametrize(
    ("rows", "level", "wanted"),
    [
        # 80%: four of five negatives lie below t = .45 -> .45 .5 .95 .96 are found; on the wrong side it would be 1.
        (TEN, 0.8, 0.8),
        (TEN, 0.6, 1.0),  # three of five below t = .35 -> all five are found
        (TEN, 1.0, 0.4),  # t = .95 -> .95 .96
        (TIES, 0.8, 0.5),
        (TIES, 0.6, 1.0),
        (([0.9, 0.5], [0, 1]), 1.0, 0.0),  # the highest score is a negative's: no observed score has specificity 1
        (BINARY, 0.56, 1.0),
    ],
)
def test_sensitivity_is_read_on_the_correct_side(rows, level, wanted):
    scores, y = np.array(rows[0]), np.array(rows[1], dtype=bool)
    assert sensitivity(level)(scores, y, np.ones((1, len(y))))[0] == wanted


@pytest.mark.parametrize(
    ("probs", "y", "wanted"),
    [
        # low p = .2 .4 with y = 0 1 -> |1 - .6| = .4; high p = .6 1.0 with y = 0 1 -> |1 - 1.6| = .6; (.4 + .6) / 4
        ([0.2, 0.4, 0.6, 1.0], [0, 1, 0, 1], 0.25),
        # p = .5 belongs to the upper of two bins: alone there, |1 - .5| = .5 beside |0 - 0| = 0 -> .5 / 2
        ([0.0, 0.5], [0, 1], 0.25),
        # The same with the classes exchanged: |1 - 0| = 1 and |0 - .5| = .5 -> 1.5 / 2; in one bin it would be .25
        ([0.0, 0.5], [1, 0], 0.75),
        # p = 1 and p = .9 share the last bin: |(1 + 0) - 1.9| / 2 = .45
        ([1.0, 0.9], [1, 0], 0.45),
    ],
)
def test_golden_calibration_error_of_two_bins(probs, y, wanted):
    found = weighted.calibration_error(np.array(probs), np.array(y, dtype=bool), np.ones((1, len(y))), bins=2)
    assert found[0] == pytest.approx(wanted)


NUMBERS = st.lists(st.integers(-20, 20).map(lambda number: number / 4), min_size=1, max_size=12)


@settings(max_examples=60)
@given(values=NUMBERS, reference=NUMBERS, seed=st.integers(0, 1000), block=st.sampled_from([1, 40, 1 << 22]))
def test_the_distance_agrees_with_scipy_on_the_repeated_table_in_blocks_of_any_size(values, reference, seed, block):
    weights = np.random.default_rng(seed).integers(0, 4, size=(5, len(values))).astype(float)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wasserstein, "BLOCK", block)
        found = wasserstein.wasserstein_1(np.asarray(values), weights, np.asarray(reference))
    for row, distance in zip(weights.astype(int), found, strict=True):
        repeated = np.repeat(values, row)
        wanted = wasserstein_distance(repeated, reference) if repeated.size else np.nan
        assert distance == pytest.approx(wanted, abs=1e-9, nan_ok=True)


def test_a_jackknifed_mean_varies_as_its_bootstrap_does_and_a_share_keeps_its_middle():
    def leave_out(values, statistic):
        return np.asarray([statistic(np.delete(values, place)) for place in range(len(values))])

    generator = np.random.default_rng(0)
    values = generator.random(12)
    weights = generator.multinomial(12, np.full(12, 1 / 12), size=200).astype(float)
    found = linear_resampling.linear_resamples(values.mean(), leave_out(values, np.mean), weights)
    np.testing.assert_allclose(found, weights @ values / 12, rtol=0, atol=1e-12)
    values = generator.integers(0, 30, size=40)
    share = np.unique(values).size / 40
    without = leave_out(values, lambda rest: np.unique(rest).size / len(rest))
    weights = generator.multinomial(40, np.full(40, 1 / 40), size=4000).astype(float)
    assert linear_resampling.linear_resamples(share, without, np.ones((1, 40)))[0] == share
    # A resample repeats values; the share of different ones in it is lower by about a quarter.
    assert linear_resampling.linear_resamples(share, without, weights).mean() == pytest.approx(share, abs=0.005)
    assert np.mean([np.unique(np.repeat(values, row.astype(int))).size / 40 for row in weights[:200]]) < share - 0.1
    # A resample that holds more of the units, or fewer, says what their proportions say.
    once, thrice = (linear_resampling.linear_resamples(share, without, many * weights) for many in (1, 3))
    np.testing.assert_array_equal(thrice, once)
    # Undefined without a unit, and cut to a share.
    undefined = linear_resampling.linear_resamples(1.0, np.asarray([np.nan]), np.asarray([[1.0], [0.0]]))
    np.testing.assert_array_equal(undefined, [1.0, np.nan])
    assert linear_resampling.linear_resamples(0.9, np.asarray([0.0, 1.0]), np.asarray([[4.0, 0.0]]))[0] == 1.0


def test_grades_agree_with_scikit_learn_and_a_resample_without_a_grade_is_undefined():
    scores, y, weights = table(seed=3)
    predicted, true = np.roll(np.arange(60) % 4, 1), (4 * scores + y).astype(int).clip(0, 3)
    weights += 1  # no grade is absent
    kappas = [cohen_kappa_score(true, predicted, weights="quadratic", sample_weight=w) for w in weights]
    np.testing.assert_allclose(weighted.quadratic_kappa(predicted, true, weights, classes=4), kappas, rtol=1e-12)
    shares = [balanced_accuracy_score(true, predicted, sample_weight=w) for w in weights]
    weights[1] *= true != 2
    shares[1] = np.nan
    np.testing.assert_allclose(weighted.balanced_accuracy(predicted, true, weights, classes=4), shares, rtol=1e-12)
    # A class that no row is of leaves every resample undefined; one and the same grade everywhere leaves kappa undefined.
    assert np.isnan(weighted.balanced_accuracy(predicted, true, weights, classes=5)).all()
    same = np.full(3, 2)
    assert np.isnan(weighted.quadratic_kappa(same, same, np.ones((2, 3)), classes=4)).all()


def test_a_ratio_of_means_is_that_of_a_plain_loop_and_undefined_over_zero():
    numerators, denominators = np.array([2.0, 0.5, 3.0, 1.0]), np.array([4.0, 0.0, 1.0, 0.0])
    weights = np.array([[1.0, 2.0, 0.0, 3.0], [0.0, 1.0, 2.0, 0.0], [0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    # (2 + 2 * 0.5 + 3 * 1) / 4;  (0.5 + 2 * 3) / 2;  2.5 / 0;  0 / 0
    np.testing.assert_array_equal(weighted.mean_ratio(numerators, denominators, weights), [1.5, 3.25, np.nan, np.nan])


@pytest.mark.parametrize("block", [1, 9, 25, 1 << 22])
@pytest.mark.parametrize("highest", [0.3, np.inf])
def test_the_jackknife_leaves_out_one_row_of_each_kind_in_blocks_of_any_size(monkeypatch, block, highest):
    """The spread of rows with repeated values, computed again without each row of the table."""
    monkeypatch.setattr(linear_resampling, "BLOCK", block)
    values = np.array([0.4, 0.1, 0.4, 0.9, 0.1, 0.1, 0.7, 0.2])

    def spread(weights):
        middles = weights @ values / weights.sum(axis=1)
        return (weights * np.abs(values - middles[:, None])).sum(axis=1) / weights.sum(axis=1)

    weights = np.array([[1, 1, 1, 1, 1, 1, 1, 1], [0, 3, 1, 0, 2, 0, 1, 4], [2, 0, 0, 5, 0, 0, 0, 0]], dtype=float)
    value = np.mean([abs(one - values.mean()) for one in values])
    expected = []
    for row in weights:
        moved = 0.0
        for place, times in enumerate(row):
            rest = np.delete(values, place)
            moved += (8 * times / row.sum() - 1) * np.mean([abs(one - rest.mean()) for one in rest])
        expected.append(min(max(value - 7 / 8 * moved, 0.0), highest))
    found = linear_resampling.linear(spread, values, weights, highest=highest)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert (max(expected) == highest) == (highest == 0.3)
