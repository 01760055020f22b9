import numpy as np
import pandas as pd
import pytest

from grpo_pipeline.pipelines.reporting.figures import POINTS, colour_of, learning_curves, smooth, thin


@pytest.fixture
def figure(metric_rows):
    return learning_curves({"supervised": metric_rows(seed=1), "grpo": metric_rows(seed=2)})


def named(figure, name):
    return [trace for trace in figure.data if trace.name == name]


def test_every_panel_overlays_both_arms(figure):
    titles = {annotation.text for annotation in figure.layout.annotations}
    assert titles == {
        *("Reward", "Supervised loss", "Policy entropy (nats)", "KL to the reference (nats)"),
        *("Mean probability ratio", "Gradient norm, supervised", "Gradient norm, RL"),
    }
    for arm in ("supervised", "grpo"):
        assert len(named(figure, f"{arm}, train")) == len(named(figure, f"{arm}, train, raw")) == 7
        assert len(named(figure, f"{arm}, validation")) == 1
        assert len({trace.xaxis for trace in named(figure, f"{arm}, train")}) == 7


def test_arms_have_their_own_colour_and_one_legend_entry_per_kind(figure):
    legend = [trace.name for trace in figure.data if trace.showlegend]
    assert sorted(legend) == ["grpo, train", "grpo, validation", "supervised, train", "supervised, validation"]
    colours = {arm: {trace.line.color for trace in named(figure, f"{arm}, train")} for arm in ("supervised", "grpo")}
    assert colours == {arm: {colour} for arm, colour in colour_of(["supervised", "grpo"]).items()}


def test_raw_values_are_the_rows_and_smoothed_ones_are_not(figure, metric_rows):
    rows = metric_rows(seed=2)
    train = rows[rows["split"] == "train"]
    raw, smoothed = named(figure, "grpo, train, raw")[0], named(figure, "grpo, train")[0]
    np.testing.assert_allclose(raw.y, train["reward/mean"])
    np.testing.assert_array_equal(raw.x, train["step"])
    assert np.diff(smoothed.y).std() < 0.3 * np.diff(raw.y).std()


def test_smoothing_keeps_a_constant_and_follows_a_step():
    np.testing.assert_allclose(smooth(pd.Series([2.0] * 90)), 2.0)
    # span 60 / 15 = 4 -> factor 2 / 5: the second of two values weighs 1 against 3 / 5 -> 1 / 1.6
    assert smooth(pd.Series([0.0, 1.0] + [1.0] * 58)).iloc[1] == pytest.approx(0.625)


@pytest.mark.parametrize("length", [1, POINTS, POINTS + 1, 7 * POINTS + 3])
def test_thinning_keeps_the_last_value_and_the_order(length):
    kept = thin(pd.Series(range(length)))
    assert len(kept) <= POINTS
    assert kept.iloc[-1] == length - 1
    assert kept.is_monotonic_increasing
