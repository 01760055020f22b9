"""Let points near the region's edge cost."""

from torch import Tensor

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.rewards.edge_distance import distance_to_edge
from grpo_pipeline.tasks.attention.rewards.point_means import mean_over_points


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
