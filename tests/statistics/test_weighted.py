import numpy as np
import pytest
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score, roc_curve

from grpo_pipeline.statistics import weighted

RESAMPLES = 25


def table(*, seed, n=60, ties=True):
    generator = np.random.default_rng(seed)
    is_positive = generator.random(n) < 0.35
    scores = np.clip(generator.normal(size=n) * 0.2 + 0.4 + 0.15 * is_positive, 0, 1)
    weights = generator.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(float)
    return (np.round(scores, 1) if ties else scores), is_positive, weights


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("seed", range(4))
class TestAgreesWithScikitLearn:
    def test_auroc(self, seed, ties):
        scores, y, weights = table(seed=seed, ties=ties)
        expected = [roc_auc_score(y, scores, sample_weight=w) for w in weights]
        np.testing.assert_allclose(weighted.auroc(scores, y, weights), expected, rtol=1e-12)

    def test_average_precision(self, seed, ties):
        scores, y, weights = table(seed=seed, ties=ties)
        expected = [average_precision_score(y, scores, sample_weight=w) for w in weights]
        np.testing.assert_allclose(weighted.average_precision(scores, y, weights), expected, rtol=1e-12)

    def test_brier_score(self, seed, ties):
        scores, y, weights = table(seed=seed, ties=ties)
        expected = [brier_score_loss(y, scores, sample_weight=w) for w in weights]
        np.testing.assert_allclose(weighted.mean((scores - y) ** 2, weights), expected, rtol=1e-12)

    @pytest.mark.parametrize("level", [0.6, 0.8, 0.95])
    def test_sensitivity_is_the_best_point_of_the_roc_curve(self, seed, ties, level):
        scores, y, weights = table(seed=seed, ties=ties)
        expected = []
        for w in weights:
            false_positives, true_positives, _ = roc_curve(y, scores, sample_weight=w, drop_intermediate=False)
            expected.append(true_positives[1 - false_positives >= level - 1e-12].max())
        found = weighted.sensitivity_at_specificity(scores, y, weights, level=level)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "statistic",
    [
        weighted.auroc,
        weighted.average_precision,
        lambda s, y, w: weighted.sensitivity_at_specificity(s, y, w, level=0.8),
        lambda s, y, w: weighted.calibration_error(s, y, w, bins=7),
        lambda s, y, w: weighted.mean(s, w),
        lambda s, y, w: weighted.mean_ratio(s, s + y, w),
    ],
)
def test_a_weight_is_a_number_of_repetitions(statistic):
    scores, y, weights = table(seed=9)
    for one, w in zip(statistic(scores, y, weights), weights, strict=True):
        rows = np.repeat(np.arange(len(y)), w.astype(int))
        np.testing.assert_allclose(one, statistic(scores[rows], y[rows], np.ones((1, len(rows))))[0], rtol=1e-12)


@pytest.mark.parametrize(
    "statistic",
    [weighted.auroc, weighted.average_precision, lambda s, y, w: weighted.sensitivity_at_specificity(s, y, w, level=0.8)],
)
def test_a_resample_with_one_class_is_undefined_and_leaves_the_others_alone(statistic):
    scores, y = np.array([0.1, 0.4, 0.6, 0.9]), np.array([False, True, False, True])
    values = statistic(scores, y, np.array([[1.0, 1, 1, 1], [0, 2, 0, 2], [2, 0, 2, 0]]))
    np.testing.assert_array_equal(np.isnan(values), [False, True, True])


def naive_auroc(scores, y):
    wins = [1.0 if p > q else 0.5 if p == q else 0.0 for p in scores[y] for q in scores[~y]]
    return sum(wins) / len(wins)


def test_auroc_counts_a_tie_as_one_half():
    # pairs (positive, negative): .5>.2 =1, .5=.5 1/2, .9>.2 =1, .9>.5 =1 -> 3.5 / 4
    scores, y = np.array([0.2, 0.5, 0.5, 0.9]), np.array([False, False, True, True])
    assert weighted.auroc(scores, y, np.ones((1, 4)))[0] == 0.875 == naive_auroc(scores, y)


def test_auroc_of_reversed_scores_is_the_complement():
    scores, y, weights = table(seed=3)
    np.testing.assert_allclose(weighted.auroc(-scores, y, weights), 1 - weighted.auroc(scores, y, weights), atol=1e-12)


class TestSensitivityIsReadOnTheCorrectSide:
    # negatives .1 .2 .3 .4 .9, positives .35 .45 .5 .95 .96
    SCORES = np.array([0.1, 0.2, 0.3, 0.4, 0.9, 0.35, 0.45, 0.5, 0.95, 0.96])
    Y = np.array([False] * 5 + [True] * 5)

    def at(self, level):
        return weighted.sensitivity_at_specificity(self.SCORES, self.Y, np.ones((1, 10)), level=level)[0]

    def test_golden(self):
        # 80%: four of five negatives lie below t = .45 -> .45 .5 .95 .96 are found: 4 / 5.
        # Read on the wrong side (sensitivity >= 80% first, then specificity; or 20% of the negatives below t): 4/5 or 5/5
        # of the positives at t = .2, that is 1.0.
        assert self.at(0.8) == 0.8
        # 60%: three of five below t = .35 -> all five are found. On the wrong side (t above 40% of the negatives): also 1.
        assert self.at(0.6) == 1.0
        # 100%: t = .95 -> .95 .96 -> 2 / 5.
        assert self.at(1.0) == 0.4

    def test_the_wrong_side_gives_another_number(self):
        false_positives, true_positives, _ = roc_curve(self.Y, self.SCORES, drop_intermediate=False)
        wrong = true_positives[false_positives >= 0.8].min()
        assert wrong == 1.0
        assert self.at(0.8) != wrong

    def test_a_negative_that_ties_with_the_threshold_is_a_false_positive(self):
        # negatives .1 .2 .3 .5 .5, positives .5 .9: t = .5 has specificity 3/5 only, so 80% needs t = .9 -> 1 / 2
        scores = np.array([0.1, 0.2, 0.3, 0.5, 0.5, 0.5, 0.9])
        y = np.array([False] * 5 + [True] * 2)
        assert weighted.sensitivity_at_specificity(scores, y, np.ones((1, 7)), level=0.8)[0] == 0.5
        assert weighted.sensitivity_at_specificity(scores, y, np.ones((1, 7)), level=0.6)[0] == 1.0

    def test_without_a_specific_threshold_nothing_is_found(self):
        # the highest score belongs to a negative: no observed score has specificity 1
        assert (
            weighted.sensitivity_at_specificity(np.array([0.9, 0.5]), np.array([False, True]), np.ones((1, 2)), level=1.0)[0] == 0
        )

    def test_levels_that_are_not_exact_in_binary_are_met(self):
        # 14 of 25 negatives lie below the only positive; 0.56 * 25 = 14.000000000000002
        scores = np.r_[np.linspace(0.01, 0.4, 14), 0.5, np.linspace(0.6, 0.9, 11)]
        y = np.r_[np.zeros(14, bool), True, np.zeros(11, bool)]
        assert weighted.sensitivity_at_specificity(scores, y, np.ones((1, 26)), level=0.56)[0] == 1.0


def test_calibration_error_golden():
    # two bins: low p = .2 .4 with y = 0 1 -> |1 - .6| = .4; high p = .6 1.0 with y = 0 1 -> |1 - 1.6| = .6; (.4 + .6) / 4
    probs, y = np.array([0.2, 0.4, 0.6, 1.0]), np.array([False, True, False, True])
    np.testing.assert_allclose(weighted.calibration_error(probs, y, np.ones((1, 4)), bins=2), [0.25])


def test_calibration_bins_include_their_lower_edge_and_the_last_one_its_upper():
    # p = .5 belongs to the upper of two bins: alone there, |1 - .5| = .5 beside |0 - 0| = 0 -> .5 / 2
    assert weighted.calibration_error(np.array([0.0, 0.5]), np.array([False, True]), np.ones((1, 2)), bins=2)[0] == 0.25
    # p = 1 and p = .9 share the last bin: |(1 + 0) - 1.9| / 2 = .45
    assert weighted.calibration_error(np.array([1.0, 0.9]), np.array([True, False]), np.ones((1, 2)), bins=2)[0] == pytest.approx(
        0.45
    )


def test_order_of_rows_changes_nothing():
    scores, y, weights = table(seed=5)
    order = np.random.default_rng(0).permutation(len(y))
    for statistic in (weighted.auroc, weighted.average_precision):
        shuffled = statistic(scores[order], y[order], weights[:, order])
        np.testing.assert_allclose(statistic(scores, y, weights), shuffled, rtol=1e-12)
