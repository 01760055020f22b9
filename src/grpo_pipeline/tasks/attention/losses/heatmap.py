"""Teach the heatmap how much of the bag is cancer."""

from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.core.training.precision import exact_region
from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes

PROB_CLAMP = 1e-4
"""The mean heatmap probability stays this far from 0 and 1 before the logarithm, in loss and reward."""
INVOLVEMENT_CLAMP = 0.02
"""The known involvement stays this far from 0 and 1."""


def involvement_loss(batch: AttentionBatch, outcomes: Outcomes) -> Tensor:
    """Return ``BCE(mean heatmap probability in the bag, involvement)`` of each sample, [P, G]."""
    return proportion_bce(outcomes.bag_probs, clamped_involvement(batch))


def proportion_bce(bag_probs: Tensor, involvement: Tensor) -> Tensor:
    """Return ``BCE(mean probability in the bag, involvement)`` elementwise; probabilities clamped by ``PROB_CLAMP``.

    The mean over a bag can round to exactly 0 or 1 in float32, where the logarithm is infinite. CUDA refuses this loss inside
    mixed precision, where credit per decision asks for it.
    """
    probs = bag_probs.clamp(PROB_CLAMP, 1 - PROB_CLAMP)
    with exact_region(probs):
        return F.binary_cross_entropy(probs, involvement, reduction="none")


def clamped_involvement(batch: AttentionBatch) -> Tensor:
    """Return the involvement as losses ask for it, [P, G]."""
    return batch.involvement.clamp(INVOLVEMENT_CLAMP, 1 - INVOLVEMENT_CLAMP)
