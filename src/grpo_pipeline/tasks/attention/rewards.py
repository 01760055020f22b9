"""Reward components: how right the decoders are with the points of a sample, and where these points lie.

Each is [P, G] and detached. ``class`` and ``heatmap`` are of the decoders' answers. The others are of the points: among the
other samples, on its heatmap, at the region's edge. Each differs between the samples of a group: what is the same for all of
them cancels when they are compared. Points are cells of the policy's grid; distances are shares of the image side. A decision
that is not valid is no point, and a sample without any point gets 0.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.edge_distance import distance_to_edge
from grpo_pipeline.tasks.attention.losses import has_bag, proportion_bce
from grpo_pipeline.tasks.attention.model import class_scores
from grpo_pipeline.tasks.attention.model.sam import cell_centres
from grpo_pipeline.tasks.attention.reward_params import RewardParams


@torch.no_grad()
def point_reward_components(
    batch: AttentionBatch,
    rollouts: Rollouts,
    outcomes: Outcomes,
    params: RewardParams,
    *,
    grid: int,
) -> dict[str, Tensor]:
    """Return those of ``diversity``, ``activation``, ``dice`` and ``boundary`` that have a weight; others are not computed."""
    parts = {}
    if params.diversity_weight:
        parts["diversity"] = diversity(cell_centres(rollouts.actions, grid), rollouts.is_valid)
    if params.activation_weight:
        parts["activation"] = activation(outcomes.mask_logits, rollouts, grid=grid)
    drawn = outcomes.segmentation_logits
    if params.dice_weight and batch.outline is not None and drawn is not None:
        parts["dice"] = mask_dice(drawn > 0, batch.outline)
    if params.boundary_weight:
        parts["boundary"] = boundary(
            batch.cells, rollouts, grid=grid, margin=params.boundary_margin
        )
    return parts


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


def activation(mask_logits: Tensor, rollouts: Rollouts, *, grid: int) -> Tensor:
    """Return the mean heatmap probability of the cells that a sample chose, by its own heatmap, in [0, 1].

    The probability of a cell is the mean over its pixels. The heatmap answers to the points, so that this part agrees with
    itself: it rewards points that the decoder takes up, not points that are right.

    Args:
        mask_logits: [P, G, H, W], whole pixels per cell.
        rollouts: cells of the same samples.
        grid: side of the cell grid.
    """
    cells = F.avg_pool2d(mask_logits.sigmoid(), mask_logits.shape[-1] // grid).flatten(2)
    return mean_over_points(cells.gather(2, rollouts.actions), rollouts.is_valid)


def boundary(cells: Tensor, rollouts: Rollouts, *, grid: int, margin: float) -> Tensor:
    """Return the penalty for points near the region's edge, -1 (all on it) to 0 (all at least ``margin`` inside).

        b[p, g] = -mean over l of max(0, 1 - distance(x[p, g, l], edge) / margin)

    Args:
        cells: bool [P, V], the region; outside the image is outside the region.
        rollouts: cells of the samples.
        grid: side of the cell grid.
        margin: share of the image side.
    """
    closeness = (1 - distance_to_edge(cells, grid) / margin).clamp(min=0)
    chosen = (
        closeness[:, None].expand(-1, rollouts.actions.shape[1], -1).gather(2, rollouts.actions)
    )
    return -mean_over_points(chosen, rollouts.is_valid)


def mask_dice(mask: Tensor, outline: Tensor) -> Tensor:
    """Return the Dice coefficient of masks and a shown outline, 2 |A and B| / (|A| + |B|), [P, G]; 0 where none is shown.

    Args:
        mask: bool [P, G, H, W].
        outline: share of each pixel in the lesion, [P, H, W]; all 0 where no outline is shown.
    """
    target, drawn = outline[:, None], mask.to(outline.dtype)
    sizes = drawn.sum((2, 3)) + target.sum((2, 3))
    return 2 * (drawn * target).sum((2, 3)) / sizes.clamp(min=1e-6)


def mean_over_points(values: Tensor, is_valid: Tensor) -> Tensor:
    """Return the mean over the last axis where valid; 0 where nothing is."""
    return values.where(is_valid, 0.0).sum(-1) / is_valid.sum(-1).clamp(min=1)


def reward_components(batch: AttentionBatch, outcomes: Outcomes) -> dict[str, Tensor]:
    """Return the named reward components of the two questions, each [P, G] in nats and detached.

    ``class`` = log p(correct class), of all classes that there are; ``heatmap`` = -BCE(mean heatmap probability in the bag,
    involvement) / 2, and 0 for a core with an empty bag.
    Both are non-positive; a sample is only ever compared with samples of the same core.

    Args:
        batch: with targets replicated to [P, G].
        outcomes: of the same samples.
    """
    if outcomes.class_scores is None or batch.classes is None:
        class_nll = F.binary_cross_entropy_with_logits(
            outcomes.class_logits, batch.label, reduction="none"
        )
    else:
        class_nll = class_scores.class_nll(outcomes.class_scores, batch.classes)
    heatmap_nll = proportion_bce(outcomes.bag_probs, batch.involvement)
    return {
        "class": -class_nll.detach(),
        "heatmap": -heatmap_nll.detach().where(has_bag(batch)[:, None], 0.0) / 2,
    }
