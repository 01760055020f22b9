"""Set the look of the report's figures: colours and axes."""

from collections.abc import Iterable
from textwrap import fill
from typing import Literal

from matplotlib.axes import Axes

# Colours that people with the common colour-vision deficiencies can tell apart.
# Source: Okabe and Ito, Color Universal Design, 2008.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)

YELLOW = "#F0E442"

CONTROL_COLOUR, SHOWN_COLOUR, OTHER_COLOURS = BLUE, VERMILLION, (GREEN, PURPLE, ORANGE, SKY)

# A page replaces these two by the colours of its theme (``page.inline_svg``).
INK, GRID = "#222222", "#E3E3E3"

# Size of a panel: two stand side by side on a screen, and one is readable on a phone.
PANEL_INCHES = (5.4, 2.5)

TITLE_LETTERS = 66  # a line of its title

SIDES = {"higher": "right is better", "lower": "left is better", "none": "neither side is better"}


def colour_of(arms: Iterable[str], *, control: str, shown: str) -> dict[str, str]:
    """Choose the colour of each arm: fixed colours for the control and the shown arm, the others' by place."""
    fixed = {shown: SHOWN_COLOUR, control: CONTROL_COLOUR}
    others = [arm for arm in arms if arm not in fixed]
    return {
        arm: fixed.get(arm) or OTHER_COLOURS[others.index(arm) % len(OTHER_COLOURS)] for arm in arms
    }


def plain_axes(axes: Axes, *, grid: Literal["x", "y", "both"] = "both") -> None:
    """Style axes like every figure: a faint grid behind the data, and no frame above and on the right."""
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color=GRID)
    axes.spines[["top", "right"]].set_visible(False)


def name_panel(axes: Axes, title: str, *, reading: str) -> None:
    """Write a panel's wrapped title above it, and the advice for reading it below."""
    axes.set_title(fill(title, TITLE_LETTERS), fontsize=10, loc="left", color=INK)
    axes.set_xlabel(reading, fontsize=8, color=INK)
    axes.tick_params(labelsize=8, colors=INK)
