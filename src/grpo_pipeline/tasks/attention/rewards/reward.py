"""Put the components of the reward together: how right the decoders are with the points of a sample, and where these lie.

Each is [P, G] and detached, and each differs between the samples of a group: what is the same for all of them cancels when they
are compared. Points are cells of the policy's grid; distances are shares of the image side. A decision that is not valid is no
point, and a sample without any point gets 0 for the components of the points.
"""

import torch
from torch import Tensor

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.model.sam import cell_centres
from grpo_pipeline.tasks.attention.rewards.activation import activation
from grpo_pipeline.tasks.attention.rewards.boundary import boundary
from grpo_pipeline.tasks.attention.rewards.correct_class import class_component
from grpo_pipeline.tasks.attention.rewards.dice import mask_dice
from grpo_pipeline.tasks.attention.rewards.diversity import diversity
from grpo_pipeline.tasks.attention.rewards.heatmap import heatmap_component
from grpo_pipeline.tasks.attention.rewards.params import RewardParams
from grpo_pipeline.tasks.attention.rewards.points import points_component


@torch.no_grad()
def reward_components(
    batch: AttentionBatch,
    placed: Rollouts,
    outcomes: Outcomes,
    params: RewardParams,
    *,
    grid: int,
    with_points: bool,
) -> dict[str, Tensor]:
    """Return the components that are measured, each [P, G]: ``class`` and ``heatmap``, and those of the points that are paid.

    Args:
        batch: with targets replicated to [P, G].
        placed: the points of the samples; a stop is no point.
        outcomes: of the same samples.
        params: says which components are paid.
        grid: side of the cell grid.
        with_points: whether samples may differ in their number of points, which is then measured.
    """
    found = {
        "class": class_component(batch, outcomes),
        "heatmap": heatmap_component(batch, outcomes),
    }
    if params.diversity:
        found["diversity"] = diversity(cell_centres(placed.actions, grid), placed.is_valid)
    if params.activation:
        found["activation"] = activation(outcomes.mask_logits, placed, grid=grid)
    drawn = outcomes.segmentation_logits
    if params.dice and batch.outline is not None and drawn is not None:
        found["dice"] = mask_dice(drawn > 0, batch.outline)
    if params.boundary:
        margin = params.boundary.margin
        found["boundary"] = boundary(batch.cells, placed, grid=grid, margin=margin)
    if with_points:
        found["points"] = points_component(placed)
    return found
