"""Rewards and supervised losses of the attention task: the same two questions, asked of samples and of weights.

The class is asked of the class decoder, the involvement (share of the needle trace inside cancer) of the heatmap.
"""

from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.model_params import SupervisedParams


def reward_parts(batch: AttentionBatch, outcomes: Outcomes) -> dict[str, Tensor]:
    """Return the named reward parts, each [P, G] in nats and detached.

    ``class`` = log p(correct class); ``heatmap`` = -BCE(mean heatmap probability in the bag, involvement) / 2.
    Both are non-positive; a sample is only ever compared with samples of the same core.

    Args:
        batch: with targets replicated to [P, G].
        outcomes: of the same samples.
    """
    class_nll = F.binary_cross_entropy_with_logits(outcomes.class_logits, batch.label, reduction="none")
    return {"class": -class_nll.detach(), "heatmap": -proportion_bce(outcomes.bag_probs, batch.involvement).detach() / 2}


def supervised_loss(batch: AttentionBatch, outcomes: Outcomes, params: SupervisedParams) -> Tensor:
    """Return ``w_c * BCE(class) + w_h * proportion BCE``, averaged over all P*G samples, a scalar."""
    class_loss = F.binary_cross_entropy_with_logits(outcomes.class_logits, batch.label)
    target = batch.involvement.clamp(params.involvement_clamp, 1 - params.involvement_clamp)
    return params.class_weight * class_loss + params.heatmap_weight * proportion_bce(outcomes.bag_probs, target).mean()


def proportion_bce(bag_probs: Tensor, involvement: Tensor) -> Tensor:
    """Return ``BCE(mean probability in the bag, involvement)`` elementwise; probabilities clamped to [1e-4, 1 - 1e-4].

    The mean over a bag can round to exactly 0 or 1 in float32, where the logarithm is infinite.
    """
    probs = bag_probs.clamp(1e-4, 1 - 1e-4)
    return F.binary_cross_entropy(probs, involvement, reduction="none")
