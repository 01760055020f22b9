"""Compute the share of a component that is kept after t of T steps of noise.

How this differs from public versions: changes are computed by a product of sines. Computed as 1 minus a number near 1, they would
lose digits in the first of many steps. The last step keeps exactly nothing, so that sampling starts from the distribution of
noised data. No step is clipped: a discrete step that changes every entry is no singularity.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# The offset of Nichol and Dhariwal: keeps the first steps from being too small to matter.
OFFSET = 0.008


@dataclass(frozen=True)
class NoiseSchedule:
    """Shares that the noise keeps and changes, float64 [T + 1] each, index t = 0..T; entry 0 keeps everything.

    Attributes:
        step_keep: alpha_t, what step t alone keeps.
        step_change: 1 - alpha_t.
        total_keep: alpha-bar_t = alpha_1 * ... * alpha_t.
        total_change: 1 - alpha-bar_t.
    """

    step_keep: Tensor
    step_change: Tensor
    total_keep: Tensor
    total_change: Tensor


def cosine_schedule(steps: int, exponent: float) -> NoiseSchedule:
    """Compute the cosine schedule with an exponent on time.

        alpha-bar_t = cos^2(a_t) / cos^2(a_0),   a_t = pi/2 * ((t / T)^exponent + s) / (1 + s),   s = 0.008

    A larger exponent keeps a component longer. Source: Nichol and Dhariwal, arXiv 2102.09672, equation 17; the exponent of a
    component: MiDi, arXiv 2302.09048.

    Args:
        steps: T, at least 1.
        exponent: above 0.

    Raises:
        ValueError: if one of them is outside its range.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}; correct the parameter")
    if not 0.0 < exponent < math.inf:
        raise ValueError(
            f"exponent must be above 0 and finite, got {exponent}; 1 is the plain cosine schedule"
        )
    time = (torch.arange(steps + 1, dtype=torch.float64) / steps) ** exponent  # [T + 1]
    angle = math.pi / 2 * (time + OFFSET) / (1 + OFFSET)
    # alpha-bar_t starts from a_0 each time, alpha_t from a_{t-1}; [T + 1] each.
    total_keep, total_change = _ratio(angle[:1], angle)
    step_keep, step_change = _ratio(torch.cat([angle[:1], angle[:-1]]), angle)
    return NoiseSchedule(
        _ended(step_keep, 0.0),
        _ended(step_change, 1.0),
        _ended(total_keep, 0.0),
        _ended(total_change, 1.0),
    )


def _ratio(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Compute cos^2(end) / cos^2(start), and 1 minus it as a product: sin(end - start) sin(end + start) / cos^2(start)."""
    scale = start.cos().square()
    return end.cos().square() / scale, (end - start).sin() * (end + start).sin() / scale


def _ended(values: Tensor, last: float) -> Tensor:
    """Set the last entry to its exact value: cos(pi / 2) is not 0 in floating point."""
    values[-1] = last
    return values
