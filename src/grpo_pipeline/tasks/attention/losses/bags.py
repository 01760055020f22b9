"""Find the cores of which a term asks anything, and average it over them.

A core with an empty bag (no pixel of the needle inside the region) is asked for its class alone: every term of the bag is
exactly 0 for it, without gradient, and it is no member of that term's average. The same holds for outlines that are not shown.
"""

import torch
from torch import Tensor

from grpo_pipeline.tasks.attention.batch import AttentionBatch


def has_bag(batch: AttentionBatch) -> Tensor:
    """Find the cores that have a pixel of the bag inside their region, bool [P]."""
    return (batch.bag > 0).flatten(1).any(1)


def has_outline(batch: AttentionBatch) -> Tensor:
    """Find the cores whose outline is shown, bool [P]; an image without a lesion has none."""
    if batch.outline is None:
        return torch.zeros(len(batch.cells), dtype=torch.bool, device=batch.cells.device)
    return (batch.outline > 0).flatten(1).any(1)


def mean_in_bag(values: Tensor, bag: Tensor) -> Tensor:
    """Return the mean over the bag's pixels, each weighted by its coverage: [P, G, H, W] and [P, H, W] -> [P, G]."""
    weight = bag / bag.sum((1, 2), keepdim=True).clamp(min=1e-6)
    return (values * weight[:, None]).sum((2, 3))


def mean_over_bags(values: Tensor, is_member: Tensor) -> Tensor:
    """Return the mean over all samples of the cores that are members, [P, G] and bool [P] -> scalar; 0 where none is."""
    count = is_member.sum() * values.shape[1]
    return values.where(is_member[:, None], 0.0).sum() / count.clamp(min=1)
