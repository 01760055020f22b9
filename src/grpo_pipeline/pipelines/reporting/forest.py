"""Draw the differences of an answer as a forest plot in HTML: a line per metric, as wide as the screen."""

from collections.abc import Iterator, Sequence

from markupsafe import Markup, escape

from grpo_pipeline.statistics.answer import Change

MARKS = {"better": "✓", "worse": "✗", "": "–"}


def forest(rows: Sequence[Change], *, one_scale: bool = False) -> Markup:
    """Draw the forest plot as HTML.

    A row has a scale of its own, since metrics have units of their own, unless all are one metric. The good side is right in
    every row: of a metric of which less is better the sign is turned round. A row without an interval shows its number and no
    line.

    Args:
        rows: metrics with a difference; others are left out.
        one_scale: whether they are one metric of several arms.
    """
    shown = [row for row in rows if row.difference is not None]
    said = "; ".join(f"{row.title} {number(row)}, {row.verdict}" for row in shown)
    widest = max(map(reach_of, shown), default=0.0)
    lines = "".join(
        line for row in shown for line in _row(row, widest if one_scale else reach_of(row))
    )
    return Markup(f'<div class="forest" role="img" aria-label="{escape(said)}">{lines}</div>')


def reach_of(row: Change) -> float:
    """Compute the largest distance from 0 of a row's interval and value."""
    ends = (*(row.interval or ()), row.difference)
    return max((abs(end) for end in ends if end is not None), default=0.0)


def _row(row: Change, reach: float) -> Iterator[str]:
    """Write the row of a metric: title, interval with the value on it, and number."""
    less = " (less is better)" if row.better == "lower" else ""
    yield f'<div class="row {row.tone or "same"}"><span class="name">{escape(row.title + less)}</span><span class="line">'
    yield from _places(row, reach or 1.0)
    yield f'</span><span class="number">{number(row)} {MARKS[row.tone]}</span></div>'


def _places(row: Change, reach: float) -> Iterator[str]:
    """Place 0, the interval and the value, in percent of the line's width; 0 lies in the middle, ``reach`` at the end."""
    low, high = row.interval or (None, None)
    if row.difference is None or low is None or high is None:
        yield '<i class="none"></i>'
        return
    sign = -1 if row.better == "lower" else 1
    left, value, right = sorted(50 + 46 * sign * end / reach for end in (low, row.difference, high))
    yield '<i class="zero"></i>'
    yield f'<i class="interval" style="left:{left:.1f}%;width:{right - left:.1f}%"></i>'
    yield f'<i class="dot" style="left:{value:.1f}%"></i>'


def number(row: Change) -> str:
    """Write a difference with its sign."""
    return "" if row.difference is None else f"{row.difference:+.2f}"
