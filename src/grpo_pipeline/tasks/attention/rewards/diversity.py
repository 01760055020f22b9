"""Pay for points away from those of the group's other samples."""

import torch
from torch import Tensor

from grpo_pipeline.tasks.attention.rewards.point_means import mean_over_points


def diversity(points: Tensor, is_valid: Tensor) -> Tensor:
    """Return how far a sample's points are from those of the other samples of its group (leave-one-out), at least 0.

        d[p, g] = mean over g' != g of mean over l of min over l' of |x[p, g, l] - x[p, g', l']|

    The directed Chamfer distance to each other set, averaged: a set away from the rest earns more, so that the policy spreads
    its sets. With G = 2 and one point it is the same for both samples and teaches nothing.

    Args:
        points: [P, G, k, 2], (x, y) in [0, 1].
        is_valid: bool [P, G, k].

    Returns:
        [P, G]; 0 for a sample without points and where no other sample has any.
    """
    n_prompts, group_size, k, _ = points.shape
    if k == 0:
        return points.new_zeros(n_prompts, group_size)
    flat, is_there = points.flatten(1, 2), is_valid.flatten(1, 2)
    # Differences, not torch.cdist: its matrix product leaves round-off where two points are the same.
    distance = (
        (flat[:, :, None] - flat[:, None])
        .square()
        .sum(-1)
        .sqrt()
        .masked_fill(~is_there[:, None], torch.inf)
    )
    nearest = distance.reshape(n_prompts, group_size, k, group_size, k).amin(-1)
    between = mean_over_points(nearest.transpose(2, 3), is_valid[:, :, None])
    has_points = is_valid.any(2)
    is_other = (
        ~torch.eye(group_size, dtype=torch.bool, device=points.device)
        & has_points[:, None]
        & has_points[:, :, None]
    )
    return between.where(is_other, 0.0).sum(2) / is_other.sum(2).clamp(min=1)
