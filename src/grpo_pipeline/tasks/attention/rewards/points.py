"""Let every point cost, where the policy decides how many it places."""

from torch import Tensor

from grpo_pipeline.core.types import Rollouts


def points_component(placed: Rollouts) -> Tensor:
    """Return the reward component ``points``, -(number of points) / k of each sample, float [P, G]; 0 for sets of k = 0.

    Args:
        placed: of ``chosen_points``.
    """
    return -placed.is_valid.float().sum(dim=-1) / max(1, placed.is_valid.shape[-1])
