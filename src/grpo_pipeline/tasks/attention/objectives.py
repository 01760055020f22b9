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


def supervised_loss(
    batch: AttentionBatch, outcomes: Outcomes, params: SupervisedParams, *, glimpse_involvement: Tensor | None
) -> Tensor:
    """Return the class loss and the involvement losses of heatmap and glimpse decoder, a scalar.

    ``w_c * BCE(class) + w_h * BCE(heatmap in the bag, involvement)``, averaged over all P*G samples, plus
    ``w_g * BCE(mean evidence of the glimpse decoder along the bag, involvement)``, averaged over P: the label is known along
    the needle alone, and there the involvement says how many of its patches hold cancer.

    Args:
        batch: targets replicated to [P, G].
        outcomes: of the samples.
        params: weights and clamp.
        glimpse_involvement: [P], or None with a decoder that does not read patches.
    """
    class_loss = F.binary_cross_entropy_with_logits(outcomes.class_logits, batch.label)
    target = batch.involvement.clamp(params.involvement_clamp, 1 - params.involvement_clamp)
    loss = params.class_weight * class_loss + params.heatmap_weight * proportion_bce(outcomes.bag_probs, target).mean()
    if glimpse_involvement is not None:
        loss = loss + params.glimpse_weight * proportion_bce(glimpse_involvement, target[:, 0]).mean()
    return loss


def proportion_bce(bag_probs: Tensor, involvement: Tensor) -> Tensor:
    """Return ``BCE(mean probability in the bag, involvement)`` elementwise; probabilities clamped to [1e-4, 1 - 1e-4].

    The mean over a bag can round to exactly 0 or 1 in float32, where the logarithm is infinite.
    """
    probs = bag_probs.clamp(1e-4, 1 - 1e-4)
    return F.binary_cross_entropy(probs, involvement, reduction="none")
