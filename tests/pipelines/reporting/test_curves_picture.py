import numpy as np
from matplotlib.colors import to_hex

from grpo_pipeline.pipelines.reporting.figures import colour_of, curves_picture, learning_curves


def test_it_draws_the_lines_of_the_interactive_figure(metric_rows):
    rows = {"supervised": metric_rows(seed=1), "grpo": metric_rows(seed=2)}
    figure, interactive = curves_picture(rows), learning_curves(rows)
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.lines]
    assert titles == [annotation.text for annotation in interactive.layout.annotations]
    lines = [line for axes in figure.axes for line in axes.lines]
    assert len(lines) == len(interactive.data)
    for line, trace in zip(lines, interactive.data, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), trace.y)
        np.testing.assert_array_equal(line.get_xdata(), trace.x)
    assert {to_hex(line.get_color(), keep_alpha=False).upper() for line in lines} == {*colour_of(rows).values()}
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["supervised, train", "supervised, validation", "grpo, train", "grpo, validation"]


def test_the_legend_has_the_arms_in_their_order(metric_rows):
    """The first panel of an arm without rewards begins with another one."""
    rows = {"supervised": metric_rows(seed=1).drop(columns="reward/mean"), "grpo": metric_rows(seed=2)}
    names = [text.get_text() for text in curves_picture(rows).legends[0].get_texts()]
    assert names == ["supervised, train", "grpo, train", "grpo, validation"]


def test_without_metrics_it_says_so(metric_rows):
    figure = curves_picture({"grpo": metric_rows(seed=1)[["step", "split"]]})
    assert figure.axes[0].texts[0].get_text() == "No training metrics were recorded."
