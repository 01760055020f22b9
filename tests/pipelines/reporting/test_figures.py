import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from grpo_pipeline.pipelines.reporting.figures import POINTS, colour_of, curves_picture, learning_curves, smooth, thin

TITLES = {
    "Reward", "Supervised loss", "Policy entropy (nats)", "KL to the reference (nats)",
    "Mean probability ratio", "Gradient norm, supervised", "Gradient norm, RL",
}  # fmt: skip


def test_learning_curves_overlay_both_arms_and_the_picture_draws_the_same_lines(metric_rows):
    rows = {"supervised": metric_rows(seed=1), "grpo": metric_rows(seed=2)}
    interactive, picture = learning_curves(rows), curves_picture(rows)
    named = {name: [trace for trace in interactive.data if trace.name == name] for name in {t.name for t in interactive.data}}
    assert {annotation.text for annotation in interactive.layout.annotations} == TITLES
    for arm in rows:
        assert len({trace.xaxis for trace in named[f"{arm}, train"]}) == len(named[f"{arm}, train, raw"]) == 7
        assert {trace.line.color for trace in named[f"{arm}, train"]} == {colour_of(rows)[arm]}
    legend = ["supervised, train", "supervised, validation", "grpo, train", "grpo, validation"]
    assert sorted(trace.name for trace in interactive.data if trace.showlegend) == sorted(legend)
    train = rows["grpo"][rows["grpo"]["split"] == "train"]
    raw, smoothed = named["grpo, train, raw"][0], named["grpo, train"][0]
    np.testing.assert_allclose(raw.y, train["reward/mean"])
    np.testing.assert_array_equal(raw.x, train["step"])
    assert np.diff(smoothed.y).std() < 0.3 * np.diff(raw.y).std()
    assert [a.get_title(loc="left") for a in picture.axes if a.lines] == [a.text for a in interactive.layout.annotations]
    lines = [line for axes in picture.axes for line in axes.lines]
    for line, trace in zip(lines, interactive.data, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), trace.y)
        np.testing.assert_array_equal(line.get_xdata(), trace.x)
    assert {to_hex(line.get_color(), keep_alpha=False).upper() for line in lines} == {*colour_of(rows).values()}
    assert [text.get_text() for text in picture.legends[0].get_texts()] == legend
    # The first panel of an arm without rewards begins with another one.
    rows["supervised"] = rows["supervised"].drop(columns="reward/mean")
    names = [text.get_text() for text in curves_picture(rows).legends[0].get_texts()]
    assert names == ["supervised, train", "grpo, train", "grpo, validation"]
    empty = curves_picture({"grpo": metric_rows(seed=1)[["step", "split"]]})
    assert empty.axes[0].texts[0].get_text() == "No training metrics were recorded."


@pytest.mark.parametrize("length", [1, POINTS, POINTS + 1, 7 * POINTS + 3])
def test_smoothing_follows_a_step_and_thinning_keeps_the_last_value_and_the_order(length):
    kept = thin(pd.Series(range(length)))
    assert len(kept) <= POINTS
    assert kept.iloc[-1] == length - 1
    assert kept.is_monotonic_increasing
    np.testing.assert_allclose(smooth(pd.Series([2.0] * 90)), 2.0)
    # span 60 / 15 = 4 -> factor 2 / 5: the second of two values weighs 1 against 3 / 5 -> 1 / 1.6
    assert smooth(pd.Series([0.0, 1.0] + [1.0] * 58)).iloc[1] == pytest.approx(0.625)
