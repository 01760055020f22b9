"""Compute losses of single heatmap pixels along the needle: where the label is known, and nowhere else.

Every function takes heatmap logits [P, G, H, W] and the bag [P, H, W], the share of each pixel inside the needle trace (and
the region), and returns one value per sample, [P, G], in nats. A core with an empty bag gets 0 and no gradient; what it must
not do to an average is the business of ``mean_over_bags``.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.label_losses import label_loss
from grpo_pipeline.tasks.attention.supervised_params import SupervisedParams

PIXELS = 4
"""Of the heatmap along each side of a cell."""


def mean_in_bag(values: Tensor, bag: Tensor) -> Tensor:
    """Return the mean over the bag's pixels, each weighted by its coverage: [P, G, H, W] and [P, H, W] -> [P, G]."""
    weight = bag / bag.sum((1, 2), keepdim=True).clamp(min=1e-6)
    return (values * weight[:, None]).sum((2, 3))


def needle_cross_entropy(
    mask_logits: Tensor, bag: Tensor, label: Tensor, params: SupervisedParams
) -> Tensor:
    """Give every pixel of the bag the label of its core.

        mean over the bag of w(y) * loss(z_i, y),   w(1) = needle_positive_weight, w(0) = 1

    With the form ``cross_entropy`` this is torch's ``pos_weight``. On a core with cancer in a part of the needle it is wrong
    about the rest: meant for pure cores, or with a small weight.

    Args:
        mask_logits: [P, G, H, W].
        bag: [P, H, W].
        label: [P, G], 0 or 1.
        params: weight of positive pixels and the form of the loss.

    Returns:
        [P, G].
    """
    target = label[:, :, None, None].expand_as(mask_logits)
    pixel_loss = label_loss(mask_logits, target, params.needle_form)
    scale = torch.where(label > 0.5, params.needle_positive_weight, 1.0)
    return scale * mean_in_bag(pixel_loss, bag)


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


def heatmap_entropy(mask_logits: Tensor, bag: Tensor) -> Tensor:
    """Return the mean binary entropy of the heatmap's pixels in the bag, 0 to log 2; as a loss it asks for clear summaries.

        mean over the bag of -p log p - (1 - p) log(1 - p) = p * softplus(-z) + (1 - p) * softplus(z),   p = sigmoid(z)

    Args:
        mask_logits: [P, G, H, W].
        bag: [P, H, W].

    Returns:
        [P, G].
    """
    probs = mask_logits.sigmoid()
    return mean_in_bag(
        probs * F.softplus(-mask_logits) + (1 - probs) * F.softplus(mask_logits), bag
    )


def _count(share: float, pixels: Tensor) -> Tensor:
    """Return ceil(share * pixels); a share that meets a whole number must not exceed it by rounding."""
    return (share * pixels.double() - 1e-9).ceil().clamp(min=0).long()
