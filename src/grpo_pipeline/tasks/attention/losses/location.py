"""Teach the policy where the needle or a shown outline lies."""

import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.batch import AttentionBatch


def location_loss(logits: Tensor, batch: AttentionBatch, grid: int) -> Tensor:
    """Return -log P(the first point lies in the place) of each core, [P]; 0 where the place has no cell of the region, or all.

    The place is the outline where the batch shows outlines, else the bag.

    Args:
        logits: of the policy's map, [P, V].
        batch: cells of the region, and the bag or the outline [P, 4h, 4w].
        grid: side of the cell grid.
    """
    place = batch.bag if batch.outline is None else batch.outline
    covered = F.adaptive_avg_pool2d(place, grid).flatten(1)
    most = covered.amax(1, keepdim=True)
    # Cells that lie at least half in the bag; of a bag smaller than that, those that it covers most.
    inside = batch.cells & (covered >= most.clamp(max=0.5)) & (covered > 0)  # [P, V]
    of_region = logits.masked_fill(~batch.cells, -torch.inf).logsumexp(1)
    is_there = inside.any(1)
    place_or_all = torch.where(is_there[:, None], inside, batch.cells)
    return of_region - logits.masked_fill(~place_or_all, -torch.inf).logsumexp(1)
