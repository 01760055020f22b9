"""Ask the label of those pixels of the bag that fit it best: multiple-instance learning."""

import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.losses.params import MilLoss

PIXELS = 4
"""Of the heatmap along each side of a cell."""


def instance_loss(mask_logits: Tensor, bag: Tensor, label: Tensor, params: MilLoss) -> Tensor:
    """Return :func:`multiple_instance_loss` of pixels or cells, [P, G]."""
    if params.instances == "cells":
        mask_logits = F.avg_pool2d(mask_logits, PIXELS)  # [P, G, H, W] -> [P, G, h, w]
        bag = F.avg_pool2d(bag, PIXELS)  # [P, H, W] -> [P, h, w]
    return multiple_instance_loss(mask_logits, bag, label, params.share)


def multiple_instance_loss(mask_logits: Tensor, bag: Tensor, label: Tensor, share: float) -> Tensor:
    """Ask the label of the pixels that fit it best: the mean of the lowest-loss ``share`` of the bag's pixels.

        mean of the ceil(share * n) smallest BCE(z_i, y) among the n pixels that the bag touches

    A bag of a core with cancer must hold some pixels that say so; which ones is for the heatmap to find. A pixel counts as a
    whole however little of it the bag covers.

    Args:
        mask_logits: [P, G, H, W].
        bag: [P, H, W].
        label: [P, G], 0 or 1.
        share: in (0, 1].

    Returns:
        [P, G].
    """
    is_bag = (bag > 0).flatten(1)
    target = label[:, :, None, None].expand_as(mask_logits)
    pixel_loss = F.binary_cross_entropy_with_logits(mask_logits, target, reduction="none").flatten(
        2
    )
    most = _count(share, torch.tensor(is_bag.shape[1]))
    lowest = (
        pixel_loss.masked_fill(~is_bag[:, None], torch.inf).topk(int(most), largest=False).values
    )
    kept = _count(share, is_bag.sum(1))
    is_kept = torch.arange(lowest.shape[2], device=bag.device) < kept[:, None, None]
    return lowest.masked_fill(~is_kept, 0.0).sum(2) / kept[:, None].clamp(min=1)


def _count(share: float, pixels: Tensor) -> Tensor:
    """Return ceil(share * pixels); a share that meets a whole number must not exceed it by rounding."""
    return (share * pixels.double() - 1e-9).ceil().clamp(min=0).long()
