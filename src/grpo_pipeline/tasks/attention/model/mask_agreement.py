"""Measure how well a mask meets an outline, both bool and at the size of the model image; NaN where there is no outline."""

import numpy as np
import torch
from scipy.ndimage import binary_erosion, distance_transform_edt
from torch import Tensor
from torch.nn import functional as F


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
