"""Named reward parts and their weighted total."""

from collections.abc import Mapping

import torch
from torch import Tensor

from grpo_pipeline.core.types import Rewards


def combine_rewards(parts: Mapping[str, Tensor], weights: Mapping[str, float]) -> Rewards:
    """Return the parts and ``total = sum_i w_i * part_i`` in float64.

    A part with weight 0 is kept for the record and adds nothing, not even its NaN; a NaN in a weighted part means that the
    sample was not scored and makes its total NaN.

    Args:
        parts: name -> [P, G].
        weights: name -> weight, the same names.

    Raises:
        ValueError: if names differ, a part carries a gradient, or no weight is positive.
    """
    if set(parts) != set(weights):
        raise ValueError(f"reward weights must name the parts {sorted(parts)}, got {sorted(weights)}; name each part once")
    attached = [name for name, part in parts.items() if part.requires_grad]
    if attached:
        raise ValueError(f"rewards must carry no gradient, got one in {attached}; detach them in Task.reward")
    total = sum((weight * parts[name].to(torch.float64) for name, weight in weights.items() if weight), start=torch.zeros(()))
    if not torch.is_tensor(total) or total.ndim != 2:
        raise ValueError(f"some reward weight must be positive, got {dict(weights)}; give one part a weight")
    return Rewards(parts=dict(parts), total=total)
