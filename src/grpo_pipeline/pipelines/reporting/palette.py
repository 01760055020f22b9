"""Colours that people with the common colour-vision deficiencies can tell apart, and the font of the figures."""

from collections.abc import Iterable

# Source: Okabe and Ito, Color Universal Design, 2008.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
YELLOW = "#F0E442"
ARM_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK, GRID = "#222222", "#E3E3E3"


def colour_of(arms: Iterable[str]) -> dict[str, str]:
    """Give each arm its colour by its place, the same in every figure."""
    return {arm: ARM_COLOURS[i % len(ARM_COLOURS)] for i, arm in enumerate(arms)}


def translucent(colour: str, opacity: float) -> str:
    """Return ``#RRGGBB`` as a CSS rgba() colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity:g})"
