"""Teach the heatmap cancer in a shown outline."""

from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.losses.bags import mean_in_bag


def heatmap_outline_loss(mask_logits: Tensor, outline: Tensor, label: Tensor) -> Tensor:
    """Return the cross-entropy of the heatmap against cancer in the outline, inside and outside counting half each: [P, G].

        1/2 sum_i o_i BCE(z_i, y) / sum_i o_i + 1/2 sum_i (1 - o_i) BCE(z_i, 0) / sum_i (1 - o_i)

    A lesion without cancer says 0 inside, too: what the heatmap learns is cancer, not lesions. Halves, since a lesion is a small
    part of an image.

    Args:
        mask_logits: z, [P, G, H, W].
        outline: o, share of each pixel in the lesion, [P, H, W]; without a pixel the first half is 0.
        label: y, [P, G].
    """
    target = label[:, :, None, None].expand_as(mask_logits)
    inside = F.binary_cross_entropy_with_logits(mask_logits, target, reduction="none")
    return (mean_in_bag(inside, outline) + mean_in_bag(F.softplus(mask_logits), 1 - outline)) / 2
