"""Pay for points where the sample's own heatmap is high."""

from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.rewards.point_means import mean_over_points


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
