"""How a cost grows: the exponent of a power law through measured points."""

import math
from collections.abc import Mapping


def exponent(cost: Mapping[int, float]) -> float | None:
    """Return b of cost = a * size^b, by least squares of the logarithms; None for fewer than two sizes."""
    if len(cost) < 2:
        return None
    x, y = ([math.log(v) for v in values] for values in (cost.keys(), cost.values()))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)
