"""Describe a mask for a class decoder: where its parts lie, and its shape.

The mask is the prompted one, or one that nobody teaches.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.core.training.precision import exact_region
from grpo_pipeline.tasks.attention.model.segmentation import square_distance

NEAR = 0.1
"""How far from its points a prompted mask is read, in shares of the image side."""

REACH, STEEPNESS = 0.14, 0.3
"""How far a seeded mask reaches from a point, and the grey levels of its slope, in standard deviations of the image."""

MASK_PARTS = ("inside", "around", "below")

AROUND = 2
"""Cells that the ring around a mask is wide."""

SHAPE = {  # measure: usual value, usual spread
    "log_area": (-2.9, 0.7),
    "height": (0.4, 0.1),
    "log_upright": (-0.5, 0.65),
    "log_roughness": (1.7, 0.17),
    "log_blur": (-0.2, 0.55),
    "log_fill": (-0.55, 0.35),
    "log_roundness": (-0.12, 0.18),
    "tilt": (0.0, 0.12),
}

SHAPE_WIDTH = len(SHAPE)


def read_at_points(masks: Tensor, points: Tensor, is_point: Tensor | None) -> Tensor:
    """Return masks [P, G, H, H] times exp(-d^2 / (2 NEAR^2)), d being the distance to the nearest point of the set.

    A mask that a network draws may know the lesion wherever the points are. Read whole it says the same for all point sets;
    read where the points are, it says what they have found. ``points`` and ``is_point`` are those of :func:`seeded_masks`.
    """
    square = square_distance(points, is_point, masks.shape[-1])
    return masks * (-square / (2 * NEAR**2)).exp()


def seeded_masks(images: Tensor, points: Tensor, is_point: Tensor | None, side: int) -> Tensor:
    """Return soft masks of the pixels that differ from the surroundings of a set's points as the points do, [P, G, side, side].

        m(x) = sigmoid( min(s (t - I(x)) / STEEPNESS, 1) - d(x)^2 / (2 REACH^2) + 1 )

    I is the image, smoothed; a its mean at the points and b that around them (a Gaussian of 2 REACH); t = (a + b) / 2 the
    threshold half-way and s the sign of b - a: dark points take what is dark. d is the distance to the nearest point, and the
    minimum lets it decide far from the points: a shadow there, however dark, is none of theirs. The mask of a set without points
    is 0. Where there is no image, I is 0, the mean grey. After Adams and Bischof 1994, "Seeded region growing"; how this differs:
    one soft threshold, and distance in the place of connectedness.

    Args:
        images: standardised, [P, 1, S, S].
        points: [P, G, k, 2], (x, y) in [0, 1]; at least one.
        is_point: bool [P, G, k], False for padding; None: all are points.
        side: pixels of the mask's side.
    """
    with exact_region(images):
        smooth = F.avg_pool2d(F.adaptive_avg_pool2d(images.float(), side), 5, 1, 2)[:, 0]
        counts = torch.ones_like(points[..., 0]) if is_point is None else is_point.float()
        n_points = counts.sum(-1).clamp(min=1)  # [P, G]
        place = (points * side).long().clamp(0, side - 1)
        place = (place[..., 1] * side + place[..., 0]).flatten(1)  # [P, G * k]
        levels = smooth.flatten(1).gather(1, place).reshape(counts.shape)
        at_points = (levels * counts).sum(-1) / n_points  # a, [P, G]
        square = square_distance(points, is_point, side)  # d^2, [P, G, side, side]
        near = (-square / (2 * (2 * REACH) ** 2)).exp()
        total = near.sum((2, 3)).clamp(min=1e-6)
        around = torch.einsum("pghw,phw->pg", near, smooth) / total  # b
        threshold, sign = (at_points + around) / 2, (around - at_points).sign()
        above = (threshold[..., None, None] - smooth[:, None]) * sign[..., None, None]
        return ((above / STEEPNESS).clamp(max=1) - square / (2 * REACH**2) + 1).sigmoid()


def mask_parts(mask: Tensor, grid: int) -> list[Tensor]:
    """Return the weights of the cells in each part of masks, those of a part sum to 1: [P, G, 4h, 4w] -> 3 times [P, G, V].

    ``inside`` is the mask, ``around`` a ring of AROUND cells, ``below`` what lies deeper in the same columns, where a lesion
    casts a shadow or lets more sound through (BI-RADS, "posterior features"). A part that is empty has weights 0.
    """
    inside = F.adaptive_avg_pool2d(mask, grid)  # [P, G, h, w]
    around = F.max_pool2d(inside, 2 * AROUND + 1, 1, AROUND) - inside
    below = inside.cummax(2).values - inside
    parts = [part.flatten(2) for part in (inside, around, below)]
    return [part / part.sum(2, keepdim=True).clamp(min=1e-3) for part in parts]


def describe_shape(mask: Tensor) -> Tensor:
    """Return the measures SHAPE of masks, about their usual values in their usual spread: [P, G, H, W] -> [P, G, SHAPE_WIDTH].

    With a the sum of the probabilities m, v_y, v_x and c the variances and the covariance of the pixels that they weigh, in
    shares of the image side, and p the sum of |differences| of neighbours, the perimeter:

        log_area = log(a / HW)          height = mean row             log_upright = log(v_y / v_x)
        log_roughness = log(p / sqrt a) log_blur = log(sum m (1 - m) / p)
        log_fill = log(a / HW / (4 pi sqrt d)), against the ellipse with these variances, d = v_y v_x - c^2
        log_roundness = log(2 sqrt d / (v_y + v_x))                   tilt = c / (v_y + v_x)

    All are divided by the root of their number, so that together they count as one. Moments of a shape: Hu 1962, "Visual pattern
    recognition by moment invariants", section II. A margin that is not smooth, and a shape that is taller than wide and no
    ellipse, speak for cancer in breast ultrasound (Stavros et al. 1995).
    """
    height, width = mask.shape[-2:]
    y = (torch.arange(height, device=mask.device, dtype=mask.dtype)[:, None] + 0.5) / height
    x = (torch.arange(width, device=mask.device, dtype=mask.dtype) + 0.5) / width
    area = mask.sum((2, 3)).clamp(min=1e-3)  # [P, G]
    weights = mask / area[..., None, None]

    def mean(values: Tensor) -> Tensor:
        return (weights * values).sum((2, 3))

    middle_y, middle_x = mean(y), mean(x)
    off_y, off_x = y - middle_y[..., None, None], x - middle_x[..., None, None]
    # The last term is the variance inside a pixel: a mask of a single one is a square, not a point.
    v_y = mean(off_y.square()) + 1 / (12 * height**2)
    v_x = mean(off_x.square()) + 1 / (12 * width**2)
    covariance = mean(off_y * off_x)
    root = (v_y * v_x - covariance.square()).clamp(min=1e-12).sqrt()
    steps = (mask.diff(dim=2).abs().sum((2, 3)) + mask.diff(dim=3).abs().sum((2, 3))).clamp(
        min=1e-3
    )
    share = area / (height * width)
    measures = torch.stack(
        [
            share.log(),
            middle_y,
            (v_y / v_x).log(),
            (steps / area.sqrt()).log(),
            ((mask * (1 - mask)).sum((2, 3)).clamp(min=1e-3) / steps).log(),
            (share / (4 * math.pi * root)).log(),
            (2 * root / (v_y + v_x)).log(),
            covariance / (v_y + v_x),
        ],
        dim=2,
    )
    centre, spread = torch.tensor(list(SHAPE.values()), device=mask.device, dtype=mask.dtype).T
    described: Tensor = (measures - centre) / spread / math.sqrt(SHAPE_WIDTH)
    return described
