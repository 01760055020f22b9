"""Learn from the decisions of which the policy was least sure, and from no other.

How this differs from the paper, and from TRL: the share is taken of the whole batch, before the first update, so that neither
micro-batches nor updates change which decisions teach.
"""

import math
from dataclasses import replace

from torch import Tensor

from grpo_pipeline.core.groups import check_decisions
from grpo_pipeline.core.types import Advantages


def keep_uncertain(
    advantages: Advantages, entropies: Tensor, is_valid: Tensor, *, share: float
) -> Advantages:
    """Silence all but the decisions of largest entropy: A = 0 below the k-th largest of n valid ones, k = ceil(share * n).

    Decisions that tie at the border are all kept. The denominators of the loss still count every decision, as in the paper.
    Source: arXiv 2506.01939, equation 5.

    Args:
        advantages: values [P, G] or [P, G, L].
        entropies: [P, G, L], nats; what is not valid is not read.
        is_valid: bool [P, G, L].
        share: of the valid decisions of the batch, in (0, 1).

    Returns:
        Values [P, G, L]; ``is_tied`` is unchanged.

    Raises:
        ValueError: for shapes that differ, or a share outside (0, 1).
    """
    if not 0.0 < share < 1.0:
        raise ValueError(
            f"the share of decisions must be within (0, 1), got {share}; leave it out to keep all"
        )
    check_decisions(is_valid, entropies=entropies)
    valid = entropies.detach()[is_valid]  # [n]
    # 0.07 * 100 is 7.000000000000001 in float64 and must keep 7, as in ``advantage_changes.keep_top``.
    kept = max(1, math.ceil(share * len(valid) - 1e-9))
    border = valid.sort(descending=True).values[:kept].amin() if len(valid) else math.inf
    is_kept = (entropies.detach() >= border) & is_valid  # [P, G, L]
    values = advantages.values if advantages.values.ndim == 3 else advantages.values[..., None]
    return replace(advantages, values=values.expand(is_kept.shape).masked_fill(~is_kept, 0.0))
