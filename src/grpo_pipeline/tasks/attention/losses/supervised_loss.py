"""Put the terms of the supervised loss together: what decoders and policy learn from labels and outlines.

The class is asked of the class decoder, the involvement (share of the needle trace inside cancer) of the heatmap. What may be
added to both, and what it is for: docs/attention/objectives.md.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.losses.bags import has_bag, has_outline, mean_over_bags
from grpo_pipeline.tasks.attention.losses.correct_class import class_loss
from grpo_pipeline.tasks.attention.losses.entropy import heatmap_entropy
from grpo_pipeline.tasks.attention.losses.glimpse import glimpse_loss
from grpo_pipeline.tasks.attention.losses.heatmap import involvement_loss
from grpo_pipeline.tasks.attention.losses.heatmap_outline import heatmap_outline_loss
from grpo_pipeline.tasks.attention.losses.mil import instance_loss
from grpo_pipeline.tasks.attention.losses.needle import needle_cross_entropy
from grpo_pipeline.tasks.attention.losses.outline import outline_loss
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams

CORES, BAGS, OUTLINES = 0, 1, 2
"""Places in ``supervised_counts`` of what a term is a mean over."""


def supervised_loss(
    batch: AttentionBatch,
    outcomes: Outcomes,
    params: SupervisedParams,
    *,
    glimpse_involvement: Tensor | None,
    shares: Tensor | None = None,
) -> Tensor:
    """Return the weighted sum of the terms that are asked of the decoders.

    The class is averaged over all P*G samples, a term of the bag over the samples of the cores that have one, a term of outlines
    over those of the cores whose outline is shown, and that of the glimpse decoder over the cores that have a bag.

    Args:
        batch: targets replicated to [P, G].
        outcomes: of the samples.
        params: the terms.
        glimpse_involvement: [P], or None with a decoder that does not read patches.
        shares: [2] or [3], of a micro-batch: its share of what ``supervised_counts`` counts; None for a whole batch.

    Returns:
        A scalar.
    """
    loss = outcomes.class_logits.new_zeros(())
    if params.class_:
        term = class_loss(batch, outcomes, params.class_.form)
        loss = loss + params.class_.weight * term * share_of(shares, CORES, term)
    is_member = has_bag(batch)
    for weight, values in bag_terms(batch, outcomes, params):
        term = mean_over_bags(values, is_member)
        loss = loss + weight * term * share_of(shares, BAGS, term)
    for weight, values in outline_terms(batch, outcomes, params):
        term = mean_over_bags(values, has_outline(batch))
        loss = loss + weight * term * share_of(shares, OUTLINES, term)
    if params.glimpse and glimpse_involvement is not None:
        term = mean_over_bags(glimpse_loss(batch, glimpse_involvement), is_member)
        loss = loss + params.glimpse.weight * term * share_of(shares, BAGS, term)
    return loss


def bag_terms(
    batch: AttentionBatch, outcomes: Outcomes, params: SupervisedParams
) -> Iterator[tuple[float, Tensor]]:
    """Yield (weight, [P, G]) of what the heatmap is asked in the bag: involvement, needle pixels, instances, clearness."""
    z, bag, label = outcomes.mask_logits, batch.bag, batch.label
    if params.heatmap:
        yield params.heatmap.weight, involvement_loss(batch, outcomes)
    if params.needle:
        yield params.needle.weight, needle_cross_entropy(z, bag, label, params.needle)
    if params.mil:
        yield params.mil.weight, instance_loss(z, bag, label, params.mil)
    if params.entropy:
        yield params.entropy.weight, heatmap_entropy(z, bag)


def outline_terms(
    batch: AttentionBatch, outcomes: Outcomes, params: SupervisedParams
) -> Iterator[tuple[float, Tensor]]:
    """Yield (weight, [P, G]) of what prompted mask and heatmap are asked in a shown outline."""
    if batch.outline is None:
        return
    if params.outline and outcomes.segmentation_logits is not None:
        yield params.outline.weight, outline_loss(outcomes.segmentation_logits, batch.outline)
    if params.heatmap_outline:
        found = heatmap_outline_loss(outcomes.mask_logits, batch.outline, batch.label)
        yield params.heatmap_outline.weight, found


def share_of(shares: Tensor | None, counted: int, term: Tensor) -> Tensor | float:
    """Return a micro-batch's share of what a term is a mean over, in the precision of the term; 1 for a whole batch."""
    return 1.0 if shares is None else shares[counted].to(term.dtype)


def supervised_counts(batch: AttentionBatch) -> Tensor:
    """Return how many cores the losses of class, bag and shown outlines are means over, float64 [2], or [3] with outlines."""
    is_member = has_bag(batch)
    counts = [is_member.new_tensor(len(is_member), dtype=torch.float64), is_member.sum().double()]
    if batch.outline is not None:
        counts.append(has_outline(batch).sum().double())
    return torch.stack(counts)
