import numpy as np
import pytest
from sklearn.metrics import roc_curve

from grpo_pipeline.pipelines.data.attention.report import LEVELS, plot_roc


def curve(figure, arm):
    return next(trace for trace in figure.data if trace.legendgroup == arm and trace.mode == "lines" and trace.fill is None)


def band(figure, arm):
    trace = next(trace for trace in figure.data if trace.name == f"{arm}, 95% band")
    high, low = np.split(np.array(trace.y), 2)
    return low[::-1], high


@pytest.fixture(scope="module")
def figure(params, arms):
    return plot_roc(params, **arms)


@pytest.mark.parametrize("arm", ["supervised", "grpo"])
def test_curve_is_the_best_sensitivity_at_each_specificity(figure, arms, arm):
    rows = arms[arm][arms[arm]["rule"] == "policy"]
    false_positives, true_positives, _ = roc_curve(rows["label"], rows["prob"], drop_intermediate=False)
    expected = [true_positives[false_positives <= 1 - level + 1e-9].max() for level in LEVELS]
    np.testing.assert_allclose(curve(figure, arm).y, expected)
    np.testing.assert_allclose(curve(figure, arm).x, np.linspace(0, 1, 101), atol=1e-12)


@pytest.mark.parametrize("arm", ["supervised", "grpo"])
def test_band_holds_the_curve_and_ends_at_one(figure, arm):
    low, high = band(figure, arm)
    inside = (low - 1e-12 <= curve(figure, arm).y) & (curve(figure, arm).y <= high + 1e-12)
    assert inside.mean() > 0.95
    assert (low[-1], high[-1]) == (1.0, 1.0)
    assert np.ptp([low, high], axis=0).max() > 0.05


def test_a_single_class_has_no_curve_and_says_so(params, arms):
    figure = plot_roc(params, **{arm: rows.assign(label=1) for arm, rows in arms.items()})
    assert {trace.name for trace in figure.data} == {
        *("chance", "supervised: undefined (a single class)", "grpo: undefined (a single class)")
    }
    assert all(trace.y == (None,) for trace in figure.data[1:])
