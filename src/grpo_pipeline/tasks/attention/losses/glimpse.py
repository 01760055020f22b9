"""Teach a decoder that reads points how much of the needle is cancer.

The label is known along the needle alone, and there the involvement says how many of its patches hold cancer.
"""

from torch import Tensor

from grpo_pipeline.tasks.attention.batch import AttentionBatch
from grpo_pipeline.tasks.attention.losses.heatmap import clamped_involvement, proportion_bce


def glimpse_loss(batch: AttentionBatch, involvement: Tensor) -> Tensor:
    """Return ``BCE(mean evidence along the bag, involvement)`` of each core, [P, 1].

    Args:
        batch: targets replicated to [P, G].
        involvement: what the decoder estimates, [P].
    """
    return proportion_bce(involvement[:, None], clamped_involvement(batch)[:, :1])
