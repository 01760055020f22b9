"""Pool a map over cells into one vector per image, for the value head.

The value is the expected reward of an image. The reward depends on points inside the region alone, while the mean over all
cells also averages what lies outside of it.
"""

import torch
from torch import Tensor

from grpo_pipeline.core.sampling.plackett_luce import log_policy
from grpo_pipeline.tasks.attention.model.policy_params import ValuePool


def pool_cells(features: Tensor, logits: Tensor, cells: Tensor | None, pool: ValuePool) -> Tensor:
    """Pool a map over its cells.

    ``image``: mean over all cells. ``region``: mean and maximum over the cells of the region. ``attention``: mean over the
    cells of the region, weighted by the policy's map, through which no gradient flows.

    Args:
        features: [P, C, h, w].
        logits: attention logits [P, h*w].
        cells: bool [P, h*w], True inside the region, somewhere in every row; None will do for ``image``.
        pool: which of them.

    Returns:
        [P, C], or [P, 2C] with ``region``: the means, then the maxima.

    Raises:
        ValueError: if the cells are needed and None.
    """
    if pool == "image":
        return features.mean(dim=(2, 3))
    if cells is None:
        raise ValueError(
            f"the cells of the region must be given for value.pool '{pool}', got None; pass the context's cells"
        )
    flat = features.flatten(2)  # [P, C, V]
    if pool == "attention":
        weights = log_policy(logits.detach(), cells).exp()
        return torch.einsum("pcv,pv->pc", flat, weights)
    is_inside = cells.unsqueeze(1)
    mean = flat.masked_fill(~is_inside, 0.0).sum(2) / is_inside.sum(2)
    return torch.cat([mean, flat.masked_fill(~is_inside, -torch.inf).amax(2)], dim=1)
