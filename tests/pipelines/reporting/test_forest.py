"""The forest of an answer: places are in percent of the line, worked out by hand."""

import re

import pytest

from grpo_pipeline.pipelines.reporting.forest import forest
from grpo_pipeline.statistics.answer import Change


def change(
    difference: float | None, interval: tuple[float, float] | None = None, *, better: str = "higher", **more: str
) -> Change:
    values = {"metric": "m", "title": "Hits", "before": 0.5, "after": 0.75, "verdict": "no difference shown"} | more
    return Change.model_validate(values | {"better": better, "difference": difference, "interval": interval})


def places(row: Change) -> list[float]:
    """Return left end and width of the interval, and the place of the value."""
    return [float(number) for number in re.findall(r"(?:left|width):([-\d.]+)%", forest([row]))]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (change(0.25, (0.0, 0.5)), [50.0, 46.0, 73.0]),  # 0 stands in the middle; the far end is 46% beside it
        (change(-0.25, (-0.5, 0.25)), [4.0, 69.0, 27.0]),
        (change(-0.25, (-0.5, 0.25), better="lower"), [27.0, 69.0, 73.0]),  # less is better: turned round
        (change(0.0, (0.0, 0.0)), [50.0, 0.0, 50.0]),
        (change(50.0, (0.0, 100.0)), [50.0, 46.0, 73.0]),  # a scale of its own
    ],
)
def test_where_an_interval_and_its_value_stand(row: Change, expected: list[float]) -> None:
    assert places(row) == expected


def test_a_change_without_an_interval_has_no_place_and_without_a_value_no_row() -> None:
    drawn = forest([change(0.25), change(None)])
    assert drawn.count('class="row') == 1
    assert ("+0.25" in drawn, places(change(0.25))) == (True, [])


def test_marks_and_titles_say_what_is_shown_and_no_title_is_markup() -> None:
    rows = [change(0.5, (0.25, 0.75), verdict="better", title="<b>"), change(-0.5, (-0.75, -0.25), verdict="worse")]
    drawn = forest([*rows, change(-0.5, (-0.75, -0.25), better="lower", verdict="better")])
    assert re.findall(r'<div class="row (\w+)">', drawn) == ["better", "worse", "better"]
    assert re.findall(r'class="number">([^<]*)<', drawn) == ["+0.50 ✓", "-0.50 ✗", "-0.50 ✓"]
    assert "<b>" not in drawn
    assert "Hits (less is better)" in drawn
    assert 'aria-label="&lt;b&gt; +0.50, better; Hits -0.50, worse; Hits -0.50, better"' in drawn


def test_rows_of_one_metric_share_a_scale() -> None:
    rows = [change(0.25, (0.0, 0.5)), change(0.5, (0.0, 1.0))]
    drawn = forest(rows, one_scale=True)
    found = [float(number) for number in re.findall(r"(?:left|width):([-\d.]+)%", drawn)]
    assert found == [50.0, 23.0, 61.5, 50.0, 46.0, 73.0]  # the far end of all, 1, is 46% beside the middle
