"""Rewards and supervised losses of the attention task: the same two questions, asked of samples and of weights.

The class is asked of the class decoder, the involvement (share of the needle trace inside cancer) of the heatmap. What may be
added to both, and what it is for: docs/objectives.md.

A core with an empty bag (no pixel of the needle inside the region) is asked for its class alone: every term of the bag is
exactly 0 for it, without gradient, and it is no member of that term's average.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.cross_entropy import label_loss
from grpo_pipeline.tasks.attention.model_params import SupervisedParams
from grpo_pipeline.tasks.attention.pixel_losses import heatmap_entropy, multiple_instance_loss, needle_cross_entropy

# Of the reward; the clamp of the loss is a parameter.
PROB_CLAMP = 1e-4


def reward_parts(batch: AttentionBatch, outcomes: Outcomes) -> dict[str, Tensor]:
    """Return the named reward parts of the two questions, each [P, G] in nats and detached.

    ``class`` = log p(correct class); ``heatmap`` = -BCE(mean heatmap probability in the bag, involvement) / 2, and 0 for a
    core with an empty bag. Both are non-positive; a sample is only ever compared with samples of the same core.

    Args:
        batch: with targets replicated to [P, G].
        outcomes: of the same samples.
    """
    class_nll = F.binary_cross_entropy_with_logits(outcomes.class_logits, batch.label, reduction="none")
    heatmap_nll = proportion_bce(outcomes.bag_probs, batch.involvement, clamp=PROB_CLAMP)
    return {"class": -class_nll.detach(), "heatmap": -heatmap_nll.detach().where(has_bag(batch)[:, None], 0.0) / 2}


def supervised_loss(
    batch: AttentionBatch,
    outcomes: Outcomes,
    params: SupervisedParams,
    *,
    glimpse_involvement: Tensor | None,
    shares: Tensor | None = None,
) -> Tensor:
    """Return the weighted sum of the class loss, the losses of the bag and the involvement loss of the glimpse decoder.

    ``w_c * loss(class)`` averaged over all P*G samples, plus the terms of the bag (:func:`bag_terms`) averaged over the
    samples of cores that have one, plus ``w_g * BCE(mean evidence of the glimpse decoder along the bag, involvement)``
    averaged over those cores: the label is known along the needle alone, and there the involvement says how many of its
    patches hold cancer.

    Args:
        batch: targets replicated to [P, G].
        outcomes: of the samples.
        params: weights, forms and clamps.
        glimpse_involvement: [P], or None with a decoder that does not read patches.

        shares: [2], of a micro-batch: its share of the step's cores, and of its cores with a bag; None for a whole batch.

    Returns:
        A scalar. A term with weight 0 is not computed, apart from those of class and involvement.
    """
    is_member = has_bag(batch)
    class_loss = label_loss(outcomes.class_logits, batch.label, params.class_form, params.symmetric).mean()
    of_cores, of_bags = (1.0, 1.0) if shares is None else shares.to(class_loss.dtype)
    loss = params.class_weight * class_loss * of_cores
    for weight, term in bag_terms(batch, outcomes, params):
        loss = loss + weight * mean_over_bags(term, is_member) * of_bags
    if glimpse_involvement is not None:
        target = _clamped_involvement(batch, params)[:, :1]
        term = proportion_bce(glimpse_involvement[:, None], target, clamp=params.prob_clamp)
        loss = loss + params.glimpse_weight * mean_over_bags(term, is_member) * of_bags
    return loss


def supervised_counts(batch: AttentionBatch) -> Tensor:
    """Return how many cores the class loss, and how many the losses of the bag are a mean over, float64 [2]."""
    is_member = has_bag(batch)
    return torch.stack([is_member.new_tensor(len(is_member), dtype=torch.float64), is_member.sum().double()])


def bag_terms(batch: AttentionBatch, outcomes: Outcomes, params: SupervisedParams) -> list[tuple[float, Tensor]]:
    """Return (weight, [P, G]) of what the heatmap is asked in the bag: involvement, needle pixels, instances, clearness."""
    z, bag, label = outcomes.mask_logits, batch.bag, batch.label
    involvement = proportion_bce(outcomes.bag_probs, _clamped_involvement(batch, params), clamp=params.prob_clamp)
    terms = [(params.heatmap_weight, involvement)]
    if params.needle_weight:
        terms.append((params.needle_weight, needle_cross_entropy(z, bag, label, params)))
    if params.mil_weight:
        terms.append((params.mil_weight, multiple_instance_loss(z, bag, label, params.mil_share)))
    if params.entropy_weight:
        terms.append((params.entropy_weight, heatmap_entropy(z, bag)))
    return terms


def has_bag(batch: AttentionBatch) -> Tensor:
    """Say which cores have a pixel of the bag inside their region, bool [P]."""
    return (batch.bag > 0).flatten(1).any(1)


def mean_over_bags(values: Tensor, is_member: Tensor) -> Tensor:
    """Return the mean over all samples of the cores that have a bag, [P, G] and bool [P] -> scalar; 0 where none has."""
    count = is_member.sum() * values.shape[1]
    return values.where(is_member[:, None], 0.0).sum() / count.clamp(min=1)


def proportion_bce(bag_probs: Tensor, involvement: Tensor, *, clamp: float = PROB_CLAMP) -> Tensor:
    """Return ``BCE(mean probability in the bag, involvement)`` elementwise; probabilities clamped to [clamp, 1 - clamp].

    The mean over a bag can round to exactly 0 or 1 in float32, where the logarithm is infinite.
    """
    probs = bag_probs.clamp(clamp, 1 - clamp)
    return F.binary_cross_entropy(probs, involvement, reduction="none")


def _clamped_involvement(batch: AttentionBatch, params: SupervisedParams) -> Tensor:
    return batch.involvement.clamp(params.involvement_clamp, 1 - params.involvement_clamp)
