"""Calibration: the fit against another optimiser, its rule, and what it refuses to fit."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit
from tiny_attention import make_data, make_examples, make_task

from grpo_pipeline.tasks.attention.inference.calibration import Calibration
from grpo_pipeline.tasks.attention.inference.calibration_fit import POINT_SETS, calibrate, fit_calibration, prediction_logits
from grpo_pipeline.tasks.attention.inference.set_logits import combine_logits


def draw(n: int, *, slope: float, intercept: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits of which sigmoid(slope * logit + intercept) is the true frequency."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, n)
    return logits, rng.random(n) < expit(slope * logits + intercept)


def oracle(logits: np.ndarray, is_positive: np.ndarray, *, with_intercept: bool) -> np.ndarray:
    """Minimise Platt's cross-entropy (1999, section 2.2) with scipy."""
    positives = is_positive.sum()
    targets = np.where(is_positive, (positives + 1) / (positives + 2), 1 / (len(logits) - positives + 2))

    def loss(x: np.ndarray) -> float:
        z = x[0] * logits + (x[1] if with_intercept else 0.0)
        return float((np.logaddexp(0, z) - targets * z).sum())

    found = minimize(loss, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000})
    return found.x


def test_platt_scaling_has_the_highest_likelihood_and_few_cores_get_a_temperature():
    logits, is_positive = draw(200, slope=0.4, intercept=-0.7)
    fitted = fit_calibration(logits, is_positive)
    assert fitted.method == "platt"
    np.testing.assert_allclose([fitted.slope, fitted.intercept], oracle(logits, is_positive, with_intercept=True), atol=1e-6)
    logits, is_positive = draw(30, slope=0.5, intercept=-2.0, seed=3)
    assert 0 < is_positive.sum() < 10
    fitted = fit_calibration(logits, is_positive)
    assert (fitted.method, fitted.intercept) == ("temperature", 0.0)
    assert fitted.reason == f"{is_positive.sum()} cores in the smaller class, fewer than 10"
    np.testing.assert_allclose(fitted.slope, oracle(logits, is_positive, with_intercept=False)[0], atol=1e-6)
    logits = np.concatenate([np.linspace(-3, -1, 20), np.linspace(1, 3, 20)])
    # Separated classes: no probability beyond Platt's targets, (20 + 1) / (20 + 2), at the outermost core by much.
    assert 0.9 < fit_calibration(logits, logits > 0).apply(np.array([2.0]))[0] < 0.999
    known = Calibration(method="platt", reason="", slope=2.0, intercept=-1.0, n=9, positives=4, bins=10)
    # sigmoid(2 * 0.5 - 1) = 0.5; sigmoid(2 * 1 - 1) = 0.7310585786.
    np.testing.assert_allclose(known.apply(np.array([0.5, 1.0])), [0.5, 0.7310585786], atol=1e-10)


def test_overconfident_logits_are_corrected():
    logits, is_positive = draw(20_000, slope=0.25, intercept=0.5)
    fitted = fit_calibration(logits, is_positive)
    np.testing.assert_allclose([fitted.slope, fitted.intercept], [0.25, 0.5], atol=0.05)  # sampling error of 20000 draws
    assert fitted.brier.after < fitted.brier.before
    assert fitted.ece.after < 0.02 < fitted.ece.before
    probs = fitted.apply(logits)
    assert fitted.brier.after == pytest.approx(np.mean((probs - is_positive) ** 2))
    np.testing.assert_array_equal(np.argsort(probs), np.argsort(logits))


def test_what_cannot_be_calibrated_says_why():
    for logits, is_positive, reason in (
        ([0.1, 0.2, 0.3], [True] * 3, "both classes, got 3 positive and 0 negative"),
        ([0.1, 0.2, 0.3], [False] * 3, "both classes, got 0 positive and 3 negative"),
        ([0.5, 0.5, 0.5], [True, False, True], "got one value"),
        ([-1.0, 1.0, -0.5, 0.5], [True, False, True, False], "rise with the label"),
        ([], [], "got 0 positive and 0 negative"),
    ):
        fitted = fit_calibration(np.array(logits), np.array(is_positive, bool))
        assert (fitted.method, fitted.slope, fitted.brier) == ("none", None, None)
        assert reason in fitted.reason
        assert np.isnan(fitted.apply(np.array([0.0, 1.0]))).all()


def test_only_the_given_rows_count_and_each_has_its_verdict():
    task, data = make_task(), make_data()
    policy = task.build_policy(0)
    rows = task.rows(data, "val")
    document = calibrate(task, policy, data, rows, seed=0)
    assert json.loads(json.dumps(document)) == document
    assert (document["split"], document["n"], document["positives"], document["seed"]) == ("val", 2, 1, 0)
    other = make_examples()
    other.images[task.rows(data, "test")] = 0
    assert calibrate(task, policy, make_data(other), rows, seed=0) == document
    logits = prediction_logits(task, policy, data, rows, seed=0)
    np.testing.assert_array_equal(logits, prediction_logits(task, policy, data, rows, seed=0))
    assert not np.array_equal(logits, prediction_logits(task, policy, data, rows, seed=1))
    assert document["brier"] is None or document["brier"]["before"] == pytest.approx(np.mean((expit(logits) - [0, 1]) ** 2))
    assert np.isfinite(logit(expit(logits))).all()


def test_the_mean_probability_of_the_point_sets_is_calibrated_and_a_core_counts_once():
    data, task = make_data(), make_task()
    table = data.examples.table
    cores = table["core_id"].where(np.arange(len(table)) % 3 == 0).ffill()  # three frames each
    label = table["label"].groupby(cores).transform("first")
    named = table.assign(core_id=cores, frame=table["core_id"], label=label)
    data = replace(data, examples=replace(data.examples, table=named))
    rows = np.array([9, 10, 11, 0, 1, 2, 6, 7, 8, 3, 4, 5])  # their cores stand in another order than their names
    policy = task.build_policy(0)
    logits = prediction_logits(task, policy, data, rows, seed=0)
    assert logits.shape == (12, POINT_SETS) == (12, 8)
    assert (np.ptp(logits, axis=1) > 0).all()
    together = logit(expit(logits).reshape(4, 3, 8).mean((1, 2)))  # over frames and sets
    expected = fit_calibration(together, label.to_numpy()[rows][::3] == 1)
    found = Calibration.model_validate(calibrate(task, policy, data, rows, seed=0))
    assert (found.n, found.method, found.n_samples) == (4, expected.method, 8)
    np.testing.assert_allclose(
        [found.slope or 0, found.intercept or 0], [expected.slope or 0, expected.intercept or 0], rtol=1e-6
    )


@pytest.mark.parametrize("how", ["mean", "max"])
def test_combined_logits_are_those_of_the_combined_probabilities(how):
    rng = np.random.default_rng(0)
    logits, codes = rng.normal(0, 3, (20, 4)), np.repeat([2, 0, 1, 0], 5)
    wanted = [getattr(np, how)(expit(logits[codes == group]), axis=0) for group in range(3)]
    np.testing.assert_allclose(combine_logits(logits, codes, how), logit(np.stack(wanted)), rtol=1e-10)


def test_a_core_is_calibrated_by_its_mean_and_one_of_before_by_single_sets():
    """Slope 2, intercept 1, probabilities 0.2 and 0.6: by hand sigmoid(2 logit(0.4) + 1), or the mean of both after it."""
    logits = logit(np.array([0.2, 0.6]))
    fitted = Calibration(method="platt", reason="", slope=2.0, intercept=1.0, n=30, positives=10, bins=10, n_samples=8)
    # odds 0.4 / 0.6 = 2 / 3, squared 4 / 9, times e: 1.2081 -> 1.2081 / 2.2081
    assert fitted.of_sets(logits) == pytest.approx(0.54712, abs=1e-5)
    before = Calibration.model_validate(fitted.model_dump(exclude={"n_samples"}))
    assert before.n_samples == 1
    # odds 1 / 16 e = 0.16989 and 9 / 4 e = 6.11613: 0.14522 and 0.85947, their mean
    assert before.of_sets(logits) == pytest.approx(0.50235, abs=1e-5)
    none = Calibration(method="none", reason="one class", n=3, positives=0, bins=10, n_samples=8)
    assert np.isnan(none.of_sets(logits))


def test_a_mean_of_sure_frames_stays_finite():
    # mean of sigmoid(50), sigmoid(60): 1 - (e^-50 + e^-60) / 2, so the logit is 50 + log 2 - log(1 + e^-10)
    found = combine_logits(np.array([50.0, 60.0]), np.zeros(2, int), "mean")
    np.testing.assert_allclose(found, [50 + np.log(2) - np.log1p(np.exp(-10))], rtol=1e-12)


def test_ten_cores_of_the_smaller_class_are_enough_for_two_numbers():
    logits = np.linspace(-2.0, 2.0, 40)
    for positives, method in ((9, "temperature"), (10, "platt"), (30, "platt"), (31, "temperature")):
        is_positive = np.arange(40) >= 40 - positives
        fitted = fit_calibration(logits + 0.5 * np.random.default_rng(1).normal(size=40), is_positive)
        assert (fitted.method, fitted.positives) == (method, positives)
