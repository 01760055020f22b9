"""Statistics of the grey levels around every cell, in several fields, relative to the region: nothing here is learned.

They are what a regression on co-occurrence matrices and a blob detector read of a whole image, here at a place: mean and
variance, of the pairs of pixels at a few distances contrast, dissimilarity, homogeneity and correlation (Haralick et al. 1973,
"Textural features for image classification"), and a soft histogram. Each is a mean over the pixels of a field, so that one pass
over the image serves every point set.

Fields are squares of so many cells, a fixed share of the image.

How this differs from the source: levels are not quantised (the co-occurrence matrix is never formed), pairs are counted where
their first pixel lies, and each statistic is taken relative to its mean over the region: a place that looks as the whole region
does is 0. What the whole region looks like is described beside it (:func:`describe_region`), with oriented gradients (Dalal and
Triggs 2005, "Histograms of oriented gradients for human detection"; without overlapping blocks).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.core.training.precision import exact_region
from grpo_pipeline.tasks.attention.model.class_decoder.params import FIELD_CELLS

LAGS = ((0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0), (0, 4), (4, 0), (0, 8), (8, 0))
"""(down, right) between the pixels of a pair."""
LEVELS, LEVEL_WIDTH = (-1.8, -1.23, -0.66, -0.09, 0.49, 1.06, 1.63, 2.2), 0.35
"""Centres and width of the histogram's bins, in standard deviations of the image."""
OF_A_PAIR = ("contrast", "dissimilarity", "homogeneity", "correlation")
# Typical spread of each kind of statistic between the cells of an image: after the division all count about the same.
SPREAD = {
    "mean": 0.7,
    "variance": 0.8,
    "contrast": 0.7,
    "dissimilarity": 0.35,
    "homogeneity": 0.07,
    "correlation": 0.3,
    "level": 0.1,
    "uniformity": 0.1,
}
# What each kind is about in a standardised image. A regression with an intercept does not need it, but is found sooner with it.
CENTRE = {
    "contrast": -3.0,
    "dissimilarity": -1.7,
    "homogeneity": 0.6,
    "correlation": 0.7,
    "level": 0.15,
    "uniformity": 0.4,
}
ORIENTATIONS, BLOCKS = 8, 8
"""Directions of a gradient, and the image's side in blocks, each of which counts them."""
OF_A_FIELD = (
    "mean",
    "variance",
    *(name for _ in LAGS for name in OF_A_PAIR),
    *("level" for _ in LEVELS),
    "uniformity",
)
REGION_WIDTH = 2 * len(OF_A_FIELD) + ORIENTATIONS * BLOCKS**2 + 2


def width(fields: Sequence[int] = FIELD_CELLS) -> int:
    """Return the number of statistics of a cell, D."""
    return len(fields) * len(OF_A_FIELD)


def describe_fields(
    images: Tensor,
    cells: Tensor,
    grid: int,
    *,
    fields: Sequence[int] = FIELD_CELLS,
) -> Tensor:
    """Return the statistics of every cell relative to the region, [P, D, h, w], the smallest field first.

    Pixels of value exactly 0, which standardised images have where there is no image, are in no mean.

    Args:
        images: standardised, [P, 1, S, S].
        cells: bool [P, V], True inside the region; at least one per row.
        grid: side h = w of the cell grid.
        fields: their sides in cells, odd.
    """
    with exact_region(images):
        described = _describe(images, grid, fields)
        inside = cells.reshape(-1, 1, grid, grid).float()
        # Zero in the padding: nothing was seen there.
        return (described - _mean_inside(described, inside)) * inside


def describe_region(
    images: Tensor,
    cells: Tensor,
    levels: Tensor,
    grid: int,
    *,
    fields: Sequence[int] = FIELD_CELLS,
) -> Tensor:
    """Return the statistics of the whole region, [P, REGION_WIDTH]: what it looks like wherever the points lie.

    Mean and spread over its cells of each statistic of the smallest field, the oriented gradients of the image's blocks,
    and the brightness and contrast that standardisation has taken away. Each of the four groups is divided by the root of
    its size, so that none outweighs the others by its number; the gradients, of which most say little, count half.

    Args:
        images: standardised, [P, 1, S, S].
        cells: bool [P, V], True inside the region; at least one per row.
        levels: mean and standard deviation of the grey levels before, as shares of white, [P, 2].
        grid: side h = w of the cell grid.
        fields: as in :func:`describe_fields`; the first is the smallest.
    """
    with exact_region(images):
        described = _describe(images, grid, fields[:1])
        inside = cells.reshape(-1, 1, grid, grid).float()
        mean = _mean_inside(described, inside)
        spread = _mean_inside((described - mean).square(), inside).sqrt()
        groups = (
            mean.flatten(1) / 0.7,
            (spread.flatten(1) - 1) / 0.4,
            0.5 * (_orientations(images.float()) - 0.3) / 0.15,
            torch.cat([(levels[:, :1] - 0.33) / 0.08, (levels[:, 1:] - 0.2) / 0.04], 1).float(),
        )
        return torch.cat([group / math.sqrt(group.shape[1]) for group in groups], dim=1)


def _orientations(images: Tensor) -> Tensor:
    """Return the share of each direction in the gradients of each block, [P, 1, S, S] -> [P, ORIENTATIONS * BLOCKS^2]."""
    across = F.pad(images[..., 2:] - images[..., :-2], (1, 1, 0, 0))
    down = F.pad(images[..., 2:, :] - images[..., :-2, :], (0, 0, 1, 1))
    strength = (across.square() + down.square()).sqrt()
    place = torch.atan2(down, across).remainder(math.pi) / math.pi * ORIENTATIONS  # [P, 1, S, S]
    middles = torch.arange(ORIENTATIONS, device=images.device)[None, :, None, None] + 0.5
    half = ORIENTATIONS / 2
    away = ((place - middles + half).remainder(ORIENTATIONS) - half).abs()
    histogram = F.adaptive_avg_pool2d(strength * (1 - away).clamp(min=0), BLOCKS)
    lengths: Tensor = torch.linalg.vector_norm(histogram, dim=1, keepdim=True)
    return torch.flatten(histogram / (lengths + 0.02), 1)


def _mean_inside(described: Tensor, inside: Tensor) -> Tensor:
    """Return the mean over the region's cells, [P, D, h, w] -> [P, D, 1, 1]."""
    return (described * inside).sum((2, 3), keepdim=True) / inside.sum((2, 3), keepdim=True)


def _describe(images: Tensor, grid: int, fields: Sequence[int]) -> Tensor:
    """Return the statistics of every cell about their usual values, in their usual spread, [P, width(fields), h, w]."""
    values = images.float()
    seen = (values != 0).float()
    size = images.shape[-1] // grid
    levels = [(-(((values - level) / LEVEL_WIDTH) ** 2)).exp() for level in LEVELS]
    single = torch.cat([values, values.square(), *levels], dim=1)
    pooled = [(F.avg_pool2d(single * seen, size), F.avg_pool2d(seen, size))]
    for lag in LAGS:  # one at a time: a few maps of pixels are in memory at once
        other, is_pair = _shift(values, lag), seen * _shift(seen, lag)
        gap = values - other
        pair = [gap.square(), gap.abs(), 1 / (1 + 4 * gap.square()), values * other]
        pooled.append(
            (F.avg_pool2d(torch.cat(pair, 1) * is_pair, size), F.avg_pool2d(is_pair, size))
        )
    described = torch.cat([_one_field(pooled, side) for side in fields], dim=1)
    spread, centre = (
        torch.tensor([of.get(name, 0.0) for name in OF_A_FIELD], device=images.device)
        for of in (SPREAD, CENTRE)
    )
    centre, spread = (of.repeat(len(fields))[:, None, None] for of in (centre, spread))
    return (described - centre) / spread


def _shift(values: Tensor, lag: tuple[int, int]) -> Tensor:
    """Return for each pixel the one that lies ``lag`` away, 0 beyond the image: [P, 1, S, S]."""
    down, right = lag
    height, width = values.shape[-2:]
    padded = F.pad(values, (max(0, -right), max(0, right), 0, down))
    return padded[..., down : down + height, max(0, right) : max(0, right) + width]


def _one_field(pooled: list[tuple[Tensor, Tensor]], side: int) -> Tensor:
    """Return the statistics of each cell's field of this side, from means over cells: [P, len(OF_A_FIELD), h, w]."""

    def around(part: tuple[Tensor, Tensor]) -> Tensor:
        total, count = (F.avg_pool2d(one, side, 1, side // 2) for one in part)
        return total / count.clamp(min=1e-6)

    single, *pairs = map(around, pooled)
    mean, levels = single[:, :1], single[:, 2:]
    variance = (single[:, 1:2] - mean.square()).clamp(min=0) + 0.05
    found = [mean, variance.log()]
    for pair in pairs:
        contrast, dissimilarity, homogeneity, product = (pair[:, i : i + 1] for i in range(4))
        correlation = ((product - mean.square()) / variance).clamp(-1, 1)
        found += [(contrast + 0.01).log(), (dissimilarity + 0.01).log(), homogeneity, correlation]
    return torch.cat([*found, levels, levels.square().sum(1, keepdim=True)], dim=1)
