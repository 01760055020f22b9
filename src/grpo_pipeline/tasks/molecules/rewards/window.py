"""Score a value by a window."""


def in_window(value: float, *, low: float, high: float, width: float) -> float:
    """Score a value: 1 inside a window, falling linearly to 0 over ``width`` on both sides.

    max(0, 1 - max(low - value, value - high, 0) / width)
    """
    return max(0.0, 1.0 - max(low - value, value - high, 0.0) / width)
