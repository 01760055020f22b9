"""The prompted mask beside the heatmap: the pixels of the image that it is drawn with, and how well it meets an outline.

SAM draws its masks from a grid of cells alone, four pixels of the mask to a cell. A model that begins without published weights
learns edges from some hundred outlines only where it sees the image itself: a small U-Net, run once per image and shared by all
point sets, adds pixels to SAM's. After "HQ-SAM" (Ke et al. 2023, "Segment anything in high quality", section 3.2), which adds
early features of the encoder there; how this differs: they come from a network of its own, and each pixel is told how near the
points are, as in click-based segmentation (Sofiiuk et al. 2022, "Reviving iterative training", section 3.1). Through SAM's tokens
alone a mask learned to be the same whatever the points were.
"""

import math
from itertools import pairwise

import numpy as np
import torch
from scipy.ndimage import binary_erosion, distance_transform_edt
from torch import Tensor, nn
from torch.nn import functional as F

from grpo_pipeline.core.training.precision import exact_region

NEARNESS = (0.05, 0.1, 0.2)
"""Standard deviations of the Gaussians around a point, in shares of the image side."""


class PixelFeatures(nn.Module):
    """Turn images [P, 1, S, S] into features of the pixels [P, D, 4h, 4w] and of the cells [P, D, h, w] by a U-Net.

    Source: Ronneberger et al. 2015, "U-Net" (arXiv 1505.04597). How this differs: four scales from 4h down to h / 2, sums in the
    place of concatenations, GroupNorm, and a first convolution of stride 2 on 8h pixels.
    """

    def __init__(self, width: int, channels: int, grid: int) -> None:
        """Build the network.

        Args:
            width: D, channels of the finest scale; 2 D, 4 D and 4 D follow.
            channels: C, of the pixels that SAM draws a mask with.
            grid: side h of the cell grid.
        """
        super().__init__()
        self.grid = grid
        widths = (width, 2 * width, 4 * width, 4 * width)
        self.stem = nn.Conv2d(1, width, 5, stride=2, padding=2)
        self.down = nn.ModuleList(
            nn.Sequential(_block(before, after), _block(after, after))
            for before, after in zip((width, *widths), widths, strict=False)
        )
        self.across = nn.ModuleList(nn.Conv2d(below, above, 1) for above, below in pairwise(widths))
        self.up = nn.ModuleList(_block(above, above) for above in widths[:-1])
        self.cells = nn.Conv2d(widths[2], width, 1)
        self.near = nn.Linear(len(NEARNESS), width)
        self.pixels = nn.Linear(width, channels + 1)
        self.heat = nn.Conv2d(width, 1, 1)
        # So that mask and heatmap start as SAM's own.
        for parameter in (*self.pixels.parameters(), *self.heat.parameters()):
            nn.init.zeros_(parameter)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features of the pixels [P, D, 4h, 4w] and of the cells [P, D, h, w]."""
        x = self.stem(F.adaptive_avg_pool2d(images, 8 * self.grid))  # [P, D, 4h, 4w]
        scales = []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else F.max_pool2d(x, 2, ceil_mode=True))
            scales.append(x)
        cells = x
        for number in reversed(range(len(self.up))):
            above = scales[number]
            x = F.interpolate(self.across[number](x), size=above.shape[-2:], mode="bilinear")
            x = self.up[number](x + above)
            if above.shape[-1] == self.grid:
                cells = self.cells(x)
        return x, cells

    def prompted(self, features: Tensor, points: Tensor, is_point: Tensor | None) -> Tensor:
        """Return what each set's mask is drawn with beside SAM: C channels of its pixels, and a logit: [P, G, C + 1, 4h, 4w].

            W relu(f + V n) + b,   n_s = max over points of exp(-|x - point|^2 / (2 s^2)) for each s of NEARNESS

        Args:
            features: f, [P, D, 4h, 4w].
            points: [P, G, k, 2], (x, y) in [0, 1]; k may be 0.
            is_point: bool [P, G, k], False for padding; None: all are points.
        """
        near = nearness(points, is_point, features.shape[-1])  # [P, G, 3, 4h, 4w]
        told = torch.einsum("pgshw,ds->pgdhw", near, self.near.weight)
        hidden = (features[:, None] + told + self.near.bias[:, None, None]).relu()
        drawn = torch.einsum("pgdhw,cd->pgchw", hidden, self.pixels.weight)
        return drawn + self.pixels.bias[:, None, None]


def nearness(points: Tensor, is_point: Tensor | None, side: int) -> Tensor:
    """Return how near each pixel's centre is to the nearest point, 1 at it and 0 far away or without any: [P, G, 3, side, side].

    Args:
        points: [P, G, k, 2], (x, y) in [0, 1].
        is_point: bool [P, G, k], False for padding; None: all are points.
        side: pixels of a side.
    """
    if points.shape[2] == 0:
        return points.new_zeros(*points.shape[:2], len(NEARNESS), side, side)
    nearest = square_distance(points, is_point, side)
    return torch.stack([(-nearest / (2 * scale**2)).exp() for scale in NEARNESS], dim=2)


def square_distance(points: Tensor, is_point: Tensor | None, side: int) -> Tensor:
    """Return the squared distance of each pixel's centre to the nearest point, [P, G, side, side]; infinite without any.

    Args:
        points: [P, G, k, 2], (x, y) in [0, 1]; k at least 1.
        is_point: bool [P, G, k], False for padding; None: all are points.
        side: pixels of a side.
    """
    centres = (torch.arange(side, device=points.device, dtype=points.dtype) + 0.5) / side
    across, down = (points[..., None] - centres).square().unbind(3)  # [P, G, k, side] each
    square = down[..., :, None] + across[..., None, :]  # [P, G, k, side, side]
    if is_point is not None:
        square = square.masked_fill(~is_point[..., None, None], torch.inf)
    return square.amin(2)


def _block(inputs: int, outputs: int) -> nn.Module:
    # GroupNorm, not BatchNorm: the same numbers in rollout and update, in train and eval mode.
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()
    )


# What a class decoder reads of a mask: where its parts lie, and its shape. It is the prompted mask, or one that nobody teaches.

NEAR = 0.1
"""How far from its points a prompted mask is read, in shares of the image side."""
REACH, STEEPNESS = 0.14, 0.3
"""How far a seeded mask reaches from a point, and the grey levels of its slope, in standard deviations of the image."""


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


# How well a mask meets an outline, both bool and at the size of the model image; NaN where there is no outline.


def resize_masks(segmentation_logits: Tensor, size: int) -> Tensor:
    """Return masks at the size of the model image, logits [P, G, H, W] -> bool [P, G, S, S]: where the logit is above 0."""
    return F.interpolate(segmentation_logits, size=(size, size), mode="bilinear") > 0


def overlap(mask: Tensor, outline: Tensor) -> tuple[Tensor, Tensor]:
    """Return Dice coefficient and intersection over union of masks and an outline, float64 [P, G] each.

        2 |A and B| / (|A| + |B|),   |A and B| / |A or B|;   0 for an empty mask, NaN where there is no outline

    Args:
        mask: bool [P, G, S, S].
        outline: bool [P, S, S].
    """
    both = (mask & outline[:, None]).sum((2, 3)).double()
    of_outline = outline.sum((1, 2)).double()[:, None]
    sizes = mask.sum((2, 3)).double() + of_outline
    unknown = (of_outline == 0).expand_as(both)
    dice, union = 2 * both / sizes.clamp(min=1), both / (sizes - both).clamp(min=1)
    return dice.masked_fill(unknown, torch.nan), union.masked_fill(unknown, torch.nan)


def hausdorff95(
    mask: np.ndarray, outline: np.ndarray, spacing: tuple[float, float] = (1.0, 1.0)
) -> float:
    """Return the larger of the two directed distances between the edges that 95 % of their pixels do not exceed.

    The edge of a mask are its pixels with a 4-neighbour outside; outside the image is outside. A quantile in the place of the
    maximum, which a single pixel decides (Huttenlocher et al. 1993, section 3). An empty mask is as far away as the image
    is long, its diagonal: leaving it out would reward it.

    Args:
        mask: bool [H, W].
        outline: bool [H, W]; without a pixel the result is NaN.
        spacing: of rows and of columns, in the unit of the result.
    """
    if not outline.any():
        return float("nan")
    if not mask.any():
        return float(np.hypot(mask.shape[0] * spacing[0], mask.shape[1] * spacing[1]))
    edges = [shape & ~binary_erosion(shape) for shape in (mask, outline)]
    to_edge = [distance_transform_edt(~edge, sampling=spacing) for edge in edges]
    return float(
        max(np.quantile(to_edge[1][edges[0]], 0.95), np.quantile(to_edge[0][edges[1]], 0.95))
    )


def clicks_to(dice: Tensor, quality: float) -> Tensor:
    """Return the number of points after which the mask first has this Dice, k + 1 if it never has; NaN where Dice is unknown.

    Args:
        dice: after 1 .. k points, [..., k].
        quality: in (0, 1].
    """
    reached = dice >= quality
    first = torch.where(reached.any(-1), reached.double().argmax(-1) + 1, dice.shape[-1] + 1)
    return first.double().masked_fill(dice.isnan().any(-1), torch.nan)


# What the heatmap says by itself, read without any mask of a test image but the region.

TOP_SHARE = 0.05


def highest_cells(heatmap: Tensor, cells: Tensor, *, share: float = TOP_SHARE) -> Tensor:
    """Return the mean over the highest ``share`` of the allowed cells, at least one of them: [P, V] -> [P].

    Args:
        heatmap: probability of each cell, [P, V].
        cells: bool [P, V], True inside the region; at least one per row.
        share: in (0, 1].
    """
    ordered = heatmap.masked_fill(~cells, -torch.inf).sort(dim=1, descending=True).values
    count = (share * cells.sum(1)).ceil().clamp(min=1)  # [P]
    is_top = torch.arange(cells.shape[1], device=cells.device) < count[:, None]
    return ordered.where(is_top, 0.0).sum(1) / count


def pointing_hit(heatmap: Tensor, cells: Tensor, lesion: Tensor) -> np.ndarray:
    """Return 1 where the highest allowed cell lies in the lesion and 0 where it does not, float64 [P]; NaN without a lesion.

    The pointing game: Zhang et al. 2018, "Top-down neural attention by excitation backprop", section 5.1; how this differs:
    no tolerance around the lesion.

    Args:
        heatmap: probability of each cell, [P, V].
        cells: bool [P, V], True inside the region.
        lesion: bool [P, V], True inside the lesion.
    """
    highest = heatmap.masked_fill(~cells, -torch.inf).argmax(1, keepdim=True)
    hit = torch.gather(lesion, 1, highest)[:, 0].double()
    return np.asarray(torch.where(lesion.any(1), hit, torch.nan).cpu().numpy())
