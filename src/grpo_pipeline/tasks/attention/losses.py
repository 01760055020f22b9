"""Supervised losses of the attention task.

The class is asked of the class decoder, the involvement (share of the needle trace inside cancer) of the heatmap. What may be
added to both, and what it is for: docs/attention/objectives.md.

A core with an empty bag (no pixel of the needle inside the region) is asked for its class alone: every term of the bag is
exactly 0 for it, without gradient, and it is no member of that term's average.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.core.training.precision import exact_region
from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.label_losses import label_loss
from grpo_pipeline.tasks.attention.model import class_scores
from grpo_pipeline.tasks.attention.needle_losses import (
    PIXELS,
    heatmap_entropy,
    mean_in_bag,
    multiple_instance_loss,
    needle_cross_entropy,
)
from grpo_pipeline.tasks.attention.supervised_params import SupervisedParams

PROB_CLAMP = 1e-4
"""The mean heatmap probability stays this far from 0 and 1 before the logarithm, in loss and reward."""
INVOLVEMENT_CLAMP = 0.02
"""The known involvement stays this far from 0 and 1."""


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
        params: weights and forms.
        glimpse_involvement: [P], or None with a decoder that does not read patches.

        shares: [2] or [3], of a micro-batch: its share of the step's cores, of its cores with a bag, and of those whose outline
            is shown; None for a whole batch.

    Returns:
        A scalar. A term with weight 0 is not computed, apart from those of class and involvement.
    """
    is_member = has_bag(batch)
    form = params.class_form
    heads, learners = outcomes.heads, outcomes.learners
    if outcomes.class_scores is not None and batch.classes is not None:
        scores = outcomes.class_scores if heads is None else heads
        of_samples = class_scores.class_loss(scores, batch.classes, form)
    elif heads is None:
        of_samples = label_loss(outcomes.class_logits, batch.label, form)
    else:
        of_samples = label_loss(heads, batch.label[..., None].expand_as(heads), form)
    if learners is not None:  # each head learns from the folds that it does not judge
        of_samples = (of_samples * learners).sum(2)
    class_loss = of_samples.mean()
    of_cores, of_bags = (1.0, 1.0) if shares is None else shares[:2].to(class_loss.dtype)
    loss = params.class_weight * class_loss * of_cores
    for weight, term in bag_terms(batch, outcomes, params):
        loss = loss + weight * mean_over_bags(term, is_member) * of_bags
    for weight, term in outline_terms(batch, outcomes, params):
        of_outlines = 1.0 if shares is None else shares[2].to(class_loss.dtype)
        loss = loss + weight * mean_over_bags(term, has_outline(batch)) * of_outlines
    if glimpse_involvement is not None:
        target = _clamped_involvement(batch)[:, :1]
        term = proportion_bce(glimpse_involvement[:, None], target)
        loss = loss + params.glimpse_weight * mean_over_bags(term, is_member) * of_bags
    return loss


def supervised_counts(batch: AttentionBatch) -> Tensor:
    """Return how many cores the losses of class, bag and shown outlines are means over, float64 [2], or [3] with outlines."""
    is_member = has_bag(batch)
    counts = [is_member.new_tensor(len(is_member), dtype=torch.float64), is_member.sum().double()]
    if batch.outline is not None:
        counts.append(has_outline(batch).sum().double())
    return torch.stack(counts)


def bag_terms(
    batch: AttentionBatch, outcomes: Outcomes, params: SupervisedParams
) -> list[tuple[float, Tensor]]:
    """Return (weight, [P, G]) of what the heatmap is asked in the bag: involvement, needle pixels, instances, clearness."""
    z, bag, label = outcomes.mask_logits, batch.bag, batch.label
    involvement = proportion_bce(outcomes.bag_probs, _clamped_involvement(batch))
    terms = [(params.heatmap_weight, involvement)]
    if params.needle_weight:
        terms.append((params.needle_weight, needle_cross_entropy(z, bag, label, params)))
    if params.mil_weight:
        instances, members = z, bag
        if params.mil_on == "cells":
            instances, members = F.avg_pool2d(z, PIXELS), F.avg_pool2d(bag, PIXELS)
        found = multiple_instance_loss(instances, members, label, params.mil_share)
        terms.append((params.mil_weight, found))
    if params.entropy_weight:
        terms.append((params.entropy_weight, heatmap_entropy(z, bag)))
    return terms


def outline_terms(
    batch: AttentionBatch, outcomes: Outcomes, params: SupervisedParams
) -> list[tuple[float, Tensor]]:
    """Return (weight, [P, G]) of what prompted mask and heatmap are asked in a shown outline; params refuse weights without."""
    terms: list[tuple[float, Tensor]] = []
    if batch.outline is None:
        return terms
    if params.outline_weight and outcomes.segmentation_logits is not None:
        terms.append(
            (params.outline_weight, outline_loss(outcomes.segmentation_logits, batch.outline))
        )
    if params.heatmap_outline_weight:
        found = heatmap_outline_loss(outcomes.mask_logits, batch.outline, batch.label)
        terms.append((params.heatmap_outline_weight, found))
    return terms


def outline_loss(segmentation_logits: Tensor, outline: Tensor) -> Tensor:
    """Return cross-entropy plus soft Dice loss of the prompted mask against the outline, [P, G].

        mean over pixels of BCE(z, y) + 1 - 2 sum(p y) / (sum(p) + sum(y)),   p = sigmoid(z)

    Dice asks for overlap whatever the size of a lesion, cross-entropy has a gradient where a mask misses it. Source: Milletari
    et al. 2016, "V-Net", section 3; how this differs: no squares in the denominator, and cross-entropy beside it.

    Args:
        segmentation_logits: z, [P, G, H, W].
        outline: y, share of each pixel in the lesion, [P, H, W]; an empty one has the loss of an empty mask.
    """
    target = outline[:, None].expand_as(segmentation_logits)
    pixel_loss = F.binary_cross_entropy_with_logits(segmentation_logits, target, reduction="none")
    probs = segmentation_logits.sigmoid()
    both, sizes = (probs * target).sum((2, 3)), (probs + target).sum((2, 3))
    return pixel_loss.mean((2, 3)) + 1 - 2 * both / sizes.clamp(min=1e-6)


def heatmap_outline_loss(mask_logits: Tensor, outline: Tensor, label: Tensor) -> Tensor:
    """Return the cross-entropy of the heatmap against cancer in the outline, inside and outside counting half each: [P, G].

        1/2 sum_i o_i BCE(z_i, y) / sum_i o_i + 1/2 sum_i (1 - o_i) BCE(z_i, 0) / sum_i (1 - o_i)

    A lesion without cancer says 0 inside, too: what the heatmap learns is cancer, not lesions. Halves, since a lesion is a small
    part of an image.

    Args:
        mask_logits: z, [P, G, H, W].
        outline: o, share of each pixel in the lesion, [P, H, W]; without a pixel the first half is 0.
        label: y, [P, G].
    """
    target = label[:, :, None, None].expand_as(mask_logits)
    inside = F.binary_cross_entropy_with_logits(mask_logits, target, reduction="none")
    return (mean_in_bag(inside, outline) + mean_in_bag(F.softplus(mask_logits), 1 - outline)) / 2


def has_outline(batch: AttentionBatch) -> Tensor:
    """Say of which cores an outline is shown, bool [P]; an image without a lesion has none."""
    if batch.outline is None:
        return torch.zeros(len(batch.cells), dtype=torch.bool, device=batch.cells.device)
    return (batch.outline > 0).flatten(1).any(1)


def location_loss(logits: Tensor, batch: AttentionBatch, grid: int) -> Tensor:
    """Return -log P(the first point lies in the place) of each core, [P]; 0 where the place has no cell of the region, or all.

    The place is the outline where the batch shows outlines, else the bag.

    Args:
        logits: of the policy's map, [P, V].
        batch: cells of the region, and the bag or the outline [P, 4h, 4w].
        grid: side of the cell grid.
    """
    place = batch.bag if batch.outline is None else batch.outline
    covered = F.adaptive_avg_pool2d(place, grid).flatten(1)
    most = covered.amax(1, keepdim=True)
    # Cells that lie at least half in the bag; of a bag smaller than that, those that it covers most.
    inside = batch.cells & (covered >= most.clamp(max=0.5)) & (covered > 0)  # [P, V]
    of_region = logits.masked_fill(~batch.cells, -torch.inf).logsumexp(1)
    is_there = inside.any(1)
    place_or_all = torch.where(is_there[:, None], inside, batch.cells)
    return of_region - logits.masked_fill(~place_or_all, -torch.inf).logsumexp(1)


def has_bag(batch: AttentionBatch) -> Tensor:
    """Say which cores have a pixel of the bag inside their region, bool [P]."""
    return (batch.bag > 0).flatten(1).any(1)


def mean_over_bags(values: Tensor, is_member: Tensor) -> Tensor:
    """Return the mean over all samples of the cores that have a bag, [P, G] and bool [P] -> scalar; 0 where none has."""
    count = is_member.sum() * values.shape[1]
    return values.where(is_member[:, None], 0.0).sum() / count.clamp(min=1)


def proportion_bce(bag_probs: Tensor, involvement: Tensor) -> Tensor:
    """Return ``BCE(mean probability in the bag, involvement)`` elementwise; probabilities clamped by ``PROB_CLAMP``.

    The mean over a bag can round to exactly 0 or 1 in float32, where the logarithm is infinite. CUDA refuses this loss inside
    mixed precision, where credit per decision asks for it.
    """
    probs = bag_probs.clamp(PROB_CLAMP, 1 - PROB_CLAMP)
    with exact_region(probs):
        return F.binary_cross_entropy(probs, involvement, reduction="none")


def _clamped_involvement(batch: AttentionBatch) -> Tensor:
    return batch.involvement.clamp(INVOLVEMENT_CLAMP, 1 - INVOLVEMENT_CLAMP)
