"""Supervised losses of the attention task.

The class is asked of the class decoder, the involvement (share of the needle trace inside cancer) of the heatmap. What may be
added to both, and what it is for: docs/objectives.md.

A core with an empty bag (no pixel of the needle inside the region) is asked for its class alone: every term of the bag is
exactly 0 for it, without gradient, and it is no member of that term's average.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.core.training.precision import exact_region
from grpo_pipeline.tasks.attention.batch import (
    AttentionBatch,
    Outcomes,
)
from grpo_pipeline.tasks.attention.model import class_scores
from grpo_pipeline.tasks.attention.params import (
    LabelLoss,
    SupervisedParams,
    SymmetricParams,
)

# Cross-entropy of a binary label, plain or symmetric, elementwise and from logits.


def label_loss(
    logits: Tensor, label: Tensor, form: LabelLoss, symmetric: SymmetricParams
) -> Tensor:
    """Return the loss of each logit against its label, in nats.

    Args:
        logits: [...].
        label: the same shape, 0 or 1.
        form: ``cross_entropy``, or ``symmetric`` for :func:`symmetric_cross_entropy`.
        symmetric: read by that form alone.
    """
    if form == "symmetric":
        return symmetric_cross_entropy(logits, label, symmetric)
    return F.binary_cross_entropy_with_logits(logits, label, reduction="none")


def symmetric_cross_entropy(logits: Tensor, label: Tensor, params: SymmetricParams) -> Tensor:
    """Return cross-entropy plus reverse cross-entropy, which a wrong label can pull less far.

        alpha * CE + beta * RCE,   CE = -[y log p + (1 - y) log(1 - p)],   RCE = -[p log y + (1 - p) log(1 - y)]

    with p = sigmoid(logit) and log 0 = A (``log_zero``), a negative number. For y in {0, 1} this is RCE = -A |y - p|, whose
    gradient vanishes where the model contradicts the label with confidence. Source: Wang et al. 2019, arXiv 1908.06112,
    equations 4 to 6; how this differs: two classes by one logit.

    Args:
        logits: [...].
        label: the same shape, in [0, 1].
        params: alpha, beta and A.
    """
    probs = logits.sigmoid()
    log_one, log_zero = (torch.log(y).clamp(min=params.log_zero) for y in (label, 1 - label))
    reverse = -(probs * log_one + (1 - probs) * log_zero)
    return (
        params.alpha * F.binary_cross_entropy_with_logits(logits, label, reduction="none")
        + params.beta * reverse
    )


# Losses of single heatmap pixels along the needle: where the label is known, and nowhere else.
#
# Every function takes heatmap logits [P, G, H, W] and the bag [P, H, W], the share of each pixel inside the needle trace (and
# the region), and returns one value per sample, [P, G], in nats. A core with an empty bag gets 0 and no gradient; what it must
# not do to an average is the business of ``mean_over_bags``.


PIXELS = 4
"""Of the heatmap along each side of a cell."""


def mean_in_bag(values: Tensor, bag: Tensor) -> Tensor:
    """Return the mean over the bag's pixels, each weighted by its coverage: [P, G, H, W] and [P, H, W] -> [P, G]."""
    weight = bag / bag.sum((1, 2), keepdim=True).clamp(min=1e-6)
    return (values * weight[:, None]).sum((2, 3))


def needle_cross_entropy(
    mask_logits: Tensor, bag: Tensor, label: Tensor, params: SupervisedParams
) -> Tensor:
    """Give every pixel of the bag the label of its core.

        mean over the bag of w(y) * loss(z_i, y),   w(1) = needle_positive_weight, w(0) = 1

    With the form ``cross_entropy`` this is torch's ``pos_weight``. On a core with cancer in a part of the needle it is wrong
    about the rest: meant for pure cores, or with a small weight.

    Args:
        mask_logits: [P, G, H, W].
        bag: [P, H, W].
        label: [P, G], 0 or 1.
        params: weight of positive pixels and the form of the loss.

    Returns:
        [P, G].
    """
    target = label[:, :, None, None].expand_as(mask_logits)
    pixel_loss = label_loss(mask_logits, target, params.needle_form, params.symmetric)
    scale = torch.where(label > 0.5, params.needle_positive_weight, 1.0)
    return scale * mean_in_bag(pixel_loss, bag)


def multiple_instance_loss(mask_logits: Tensor, bag: Tensor, label: Tensor, share: float) -> Tensor:
    """Ask the label of the pixels that fit it best: the mean of the lowest-loss ``share`` of the bag's pixels.

        mean of the ceil(share * n) smallest BCE(z_i, y) among the n pixels that the bag touches

    A bag of a core with cancer must hold some pixels that say so; which ones is for the heatmap to find. A pixel counts as a
    whole however little of it the bag covers.

    Args:
        mask_logits: [P, G, H, W].
        bag: [P, H, W].
        label: [P, G], 0 or 1.
        share: in (0, 1].

    Returns:
        [P, G].
    """
    is_bag = (bag > 0).flatten(1)
    target = label[:, :, None, None].expand_as(mask_logits)
    pixel_loss = F.binary_cross_entropy_with_logits(mask_logits, target, reduction="none").flatten(
        2
    )
    most = _count(share, torch.tensor(is_bag.shape[1]))
    lowest = (
        pixel_loss.masked_fill(~is_bag[:, None], torch.inf).topk(int(most), largest=False).values
    )
    kept = _count(share, is_bag.sum(1))
    is_kept = torch.arange(lowest.shape[2], device=bag.device) < kept[:, None, None]
    return lowest.masked_fill(~is_kept, 0.0).sum(2) / kept[:, None].clamp(min=1)


def heatmap_entropy(mask_logits: Tensor, bag: Tensor) -> Tensor:
    """Return the mean binary entropy of the heatmap's pixels in the bag, 0 to log 2; as a loss it asks for clear summaries.

        mean over the bag of -p log p - (1 - p) log(1 - p) = p * softplus(-z) + (1 - p) * softplus(z),   p = sigmoid(z)

    Args:
        mask_logits: [P, G, H, W].
        bag: [P, H, W].

    Returns:
        [P, G].
    """
    probs = mask_logits.sigmoid()
    return mean_in_bag(
        probs * F.softplus(-mask_logits) + (1 - probs) * F.softplus(mask_logits), bag
    )


def _count(share: float, pixels: Tensor) -> Tensor:
    """Return ceil(share * pixels); a share that meets a whole number must not exceed it by rounding."""
    return (share * pixels.double() - 1e-9).ceil().clamp(min=0).long()


# Of the reward; the clamp of the loss is a parameter.
PROB_CLAMP = 1e-4


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

        shares: [2] or [3], of a micro-batch: its share of the step's cores, of its cores with a bag, and of those whose outline
            is shown; None for a whole batch.

    Returns:
        A scalar. A term with weight 0 is not computed, apart from those of class and involvement.
    """
    is_member = has_bag(batch)
    form, symmetric = params.class_form, params.symmetric
    heads, learners = outcomes.heads, outcomes.learners
    if outcomes.class_scores is not None and batch.classes is not None:
        scores = outcomes.class_scores if heads is None else heads
        of_samples = class_scores.class_loss(scores, batch.classes, form, symmetric)
    elif heads is None:
        of_samples = label_loss(outcomes.class_logits, batch.label, form, symmetric)
    else:
        of_samples = label_loss(heads, batch.label[..., None].expand_as(heads), form, symmetric)
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
        target = _clamped_involvement(batch, params)[:, :1]
        term = proportion_bce(glimpse_involvement[:, None], target, clamp=params.prob_clamp)
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
    involvement = proportion_bce(
        outcomes.bag_probs, _clamped_involvement(batch, params), clamp=params.prob_clamp
    )
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


def proportion_bce(bag_probs: Tensor, involvement: Tensor, *, clamp: float = PROB_CLAMP) -> Tensor:
    """Return ``BCE(mean probability in the bag, involvement)`` elementwise; probabilities clamped to [clamp, 1 - clamp].

    The mean over a bag can round to exactly 0 or 1 in float32, where the logarithm is infinite. CUDA refuses this loss inside
    mixed precision, where credit per decision asks for it.
    """
    probs = bag_probs.clamp(clamp, 1 - clamp)
    with exact_region(probs):
        return F.binary_cross_entropy(probs, involvement, reduction="none")


def _clamped_involvement(batch: AttentionBatch, params: SupervisedParams) -> Tensor:
    return batch.involvement.clamp(params.involvement_clamp, 1 - params.involvement_clamp)
