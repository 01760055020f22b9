"""Give every heatmap pixel along the needle the label of its core."""

import torch
from torch import Tensor

from grpo_pipeline.tasks.attention.losses.bags import mean_in_bag
from grpo_pipeline.tasks.attention.losses.label_loss import label_loss
from grpo_pipeline.tasks.attention.losses.params import NeedleLoss


def needle_cross_entropy(
    mask_logits: Tensor, bag: Tensor, label: Tensor, params: NeedleLoss
) -> Tensor:
    """Give every pixel of the bag the label of its core.

        mean over the bag of w(y) * loss(z_i, y),   w(1) = positive_weight, w(0) = 1

    With the form ``cross_entropy`` this is torch's ``pos_weight``. On a core with cancer in a part of the needle it is wrong
    about the rest: meant for pure cores, or with a small weight.

    Args:
        mask_logits: [P, G, H, W].
        bag: [P, H, W].
        label: [P, G], 0 or 1.
        params: factor on positive pixels and the form of the loss.

    Returns:
        [P, G].
    """
    target = label[:, :, None, None].expand_as(mask_logits)
    pixel_loss = label_loss(mask_logits, target, params.form)
    scale = torch.where(label > 0.5, params.positive_weight, 1.0)
    return scale * mean_in_bag(pixel_loss, bag)
