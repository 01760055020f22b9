"""Class decoders: the probability of cancer, read from the points or from the whole image.

``glimpse`` reads nothing but a small patch of the image around each point, so that a good prediction needs good points.
``statistics`` reads fixed statistics of some fields around it, relative to the region: more to go by where examples are few.
``global`` (the public design) reads the mask decoder's token, which sees the whole image: there, points may become a code
that says nothing about where the cancer is (docs/decisions/0004).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grpo_pipeline.core.training.precision import at_least_float32, exact_region
from grpo_pipeline.tasks.attention.data.params import Classes
from grpo_pipeline.tasks.attention.model.class_scores import ClassHead, class_head, n_outputs
from grpo_pipeline.tasks.attention.model.field_statistics import REGION_WIDTH, width
from grpo_pipeline.tasks.attention.model.filter_bank import FilterBank
from grpo_pipeline.tasks.attention.model.mask_reading import (
    MASK_PARTS,
    SHAPE_WIDTH,
    describe_shape,
    mask_parts,
)
from grpo_pipeline.tasks.attention.model_params import ModelParams


class PointDecoder(nn.Module):
    """Pool the evidence for cancer at k points into one logit per point set; ``weigh`` says what the evidence is.

    Where the model tells C classes without an order apart, evidence, prior and logits have a last axis of C more.
    Subclasses read what they look at: images, or a map of the cells.
    """

    def __init__(self, params: ModelParams, classes: Classes | None) -> None:
        super().__init__()
        self.pool = params.glimpse_pool
        self.outputs = n_outputs(classes)
        self.prior = nn.Parameter(torch.zeros(() if self.outputs == 1 else self.outputs))
        self.involvement_prior = nn.Parameter(torch.zeros(()))
        self.classes: ClassHead | None = class_head(classes)

    def weigh(self, view: Tensor, points: Tensor, folds: Tensor | None = None) -> Tensor:
        """Return the evidence for cancer at each point, a logit: points [P, M, 2] -> [P, M], or [P, M, C]."""
        raise NotImplementedError

    def forward(self, view: Tensor, points: Tensor, is_point: Tensor | None = None) -> Tensor:
        """Return cancer logits [P, G], or class scores [P, G, C].

        Args:
            view: what ``weigh`` reads, P of them.
            points: [P, G, k, 2], (x, y) in [0, 1]; with k = 0 the learned prior answers.
            is_point: bool [P, G, k], False for padding, which is not pooled; None: all are points.
        """
        n_prompts, group_size, k, _ = points.shape
        if k == 0:
            return self.prior.expand(n_prompts, group_size, *self.prior.shape)
        evidence = self.weigh(view, points.flatten(1, 2))
        evidence = evidence.reshape(n_prompts, group_size, k, *self.prior.shape)
        if self.prior.ndim:
            evidence = evidence.movedim(-1, 2)  # [P, G, C, k]
            is_point = None if is_point is None else is_point[:, :, None]
        return pool_evidence(evidence, self.pool, is_point) + self.prior

    def estimate_involvement(
        self, view: Tensor, points: Tensor, is_valid: Tensor, folds: Tensor | None = None
    ) -> Tensor:
        """Return the mean probability of cancer over points of the bag, [P].

        Args:
            view: what ``weigh`` reads, P of them.
            points: [P, M, 2], (x, y) in [0, 1].
            is_valid: bool [P, M], True where a point lies in the bag; at least one per row.
            folds: int64 [P], for a decoder with folds.
        """
        evidence = self.weigh(view, points, folds)
        if self.classes is not None:
            evidence = self.classes.log_odds(evidence)
        probs = (evidence + self.involvement_prior).sigmoid() * is_valid
        return probs.sum(1) / is_valid.sum(1).clamp(min=1)


class GlimpseDecoder(PointDecoder):
    """Read nothing but a patch of ``size`` pixels around each point.

    A patch is described by the texture energies of a learned filter bank. A deeper network separates true cancer patches
    better, but from weak labels it learned the training patches by heart (docs/log.md).
    """

    def __init__(self, params: ModelParams, classes: Classes | None = None) -> None:
        super().__init__(params, classes)
        self.size = params.glimpse_size
        self.texture = FilterBank(params.glimpse_channels)
        self.evidence = nn.Sequential(
            nn.Linear(self.texture.width, 32), nn.ReLU(), nn.Linear(32, self.outputs)
        )

    def weigh(self, images: Tensor, points: Tensor, folds: Tensor | None = None) -> Tensor:
        """Return the evidence for cancer at each point, a logit: points [P, M, 2] -> [P, M], or [P, M, C]."""
        patches = crop_patches(images, points, self.size)
        with exact_region(images):
            evidence: Tensor = self.evidence(self.texture.describe_patches(patches.flatten(0, 1)))
        return evidence.reshape(*points.shape[:2], *self.prior.shape)


class StatisticsDecoder(PointDecoder):
    """Read the statistics of some fields around each point (``field_statistics``) by a penalised logistic regression.

    The statistics are computed once per image and shared by all point sets; nothing is cropped. With ``reads_region`` the
    statistics of the whole region are read beside them. With F ``folds`` there are F regressions, and none learns from the
    images of its own fold (cross-fitting, Chernozhukov et al. 2018, "Double/debiased machine learning"): what a regression
    says of an image that it has learned by heart is no reward for its points. Images that none learns from get the mean.
    """

    def __init__(self, params: ModelParams, classes: Classes | None = None) -> None:
        super().__init__(params, classes)
        self.folds = params.decoder_folds
        channels = width(params.field_cells)
        # Of the fields' statistics, so that those of the points count about twice as much as the region's.
        self.scale = 2 / math.sqrt(channels)
        # Channel f * C + c is what regression f says of class c; without classes C = 1.
        self.evidence = nn.Conv2d(channels, self.folds * self.outputs, kernel_size=1)
        self.region = (
            nn.Linear(REGION_WIDTH, self.folds * self.outputs, bias=False)
            if params.reads_region
            else None
        )
        # Of each part of the mask, and last of its shape.
        self.mask: nn.ModuleList | None = None
        if params.reads_mask != "none":
            outputs = self.folds * self.outputs
            inputs = (*(channels for _ in MASK_PARTS), SHAPE_WIDTH)
            self.mask = nn.ModuleList(nn.Linear(n, outputs, bias=False) for n in inputs)
        for module in (self.evidence, self.region, self.mask):
            for parameter in () if module is None else module.parameters():
                nn.init.zeros_(parameter)

    def map_evidence(self, statistics: Tensor, folds: Tensor | None = None) -> Tensor:
        """Return the evidence of every cell by the regressions that may judge the image, [P, D, h, w] -> [P, 1, h, w].

        Of several classes, the log-odds of the positive ones that a point there would give, without the region's part.
        """
        evidence = self._evidence(statistics)
        judges = judging_heads(folds, len(statistics), self.folds, evidence.device)
        if self.classes is None or not self.prior.ndim:
            return (evidence * judges[..., None, None]).sum(1, keepdim=True)
        n, _, *place = evidence.shape
        of_classes = evidence.reshape(n, self.folds, self.outputs, *place)
        scores = (of_classes * judges[..., None, None, None]).sum(1).movedim(1, -1) + self.prior
        return self.classes.log_odds(scores)[:, None]

    def heads(
        self,
        statistics: Tensor,
        region: Tensor | None,
        points: Tensor,
        is_point: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the cancer logit of each regression, [P, G, F], or its class scores, [P, G, F, C].

        Args:
            statistics: [P, D, h, w].
            region: statistics of the whole region [P, REGION_WIDTH], with ``reads_region``.
            points: [P, G, k, 2], (x, y) in [0, 1]; with k = 0 the region and the learned prior answer.
            is_point: bool [P, G, k], False for padding; None: all are points.
            mask: probability of each pixel of the sets' masks [P, G, 4h, 4w], or [P, 1, 4h, 4w] for all, with ``reads_mask``.
                That of a set without points says nothing.
        """
        n_prompts, group_size, k, _ = points.shape
        shape = (self.folds, *self.prior.shape)  # (F) or (F, C)
        logits = self.prior.expand(n_prompts, group_size, *shape)
        if self.region is not None and region is not None:
            with exact_region(region):
                of_region = self.region(at_least_float32(region))
            logits = logits + of_region.reshape(n_prompts, 1, *shape)
        if k == 0:
            return logits
        evidence = _at_points(self._evidence(statistics), points.flatten(1, 2))  # [P, F * C, G * k]
        evidence = evidence.reshape(n_prompts, *shape, group_size, k)
        if self.mask is not None and mask is not None:
            of_mask = self._read_mask(statistics, mask)  # [P, G, F * C]
            if is_point is not None:
                of_mask = of_mask * is_point.any(-1, keepdim=True)
            logits = logits + of_mask.reshape(n_prompts, -1, *shape)
        at_heads = None if is_point is None else is_point[:, None]
        if self.prior.ndim and at_heads is not None:
            at_heads = at_heads[:, None]
        return logits + pool_evidence(evidence, self.pool, at_heads).movedim(-1, 1)

    def _read_mask(self, statistics: Tensor, mask: Tensor) -> Tensor:
        """Return what the regressions read of masks, their parts and their shape: [P, G, 4h, 4w] -> [P, G, F * C]."""
        assert self.mask is not None
        *parts, shape = self.mask
        with exact_region(statistics):
            cells = at_least_float32(statistics).flatten(2).transpose(1, 2)  # [P, V, D]
            mask = at_least_float32(mask)
            total: Tensor = shape(describe_shape(mask))
            # A map of evidence per part, shared by all G masks: D statistics are never averaged per set.
            for read, weights in zip(parts, mask_parts(mask, statistics.shape[-1]), strict=True):
                total = total + weights @ (read(cells) * self.scale)  # [P, G, V] @ [P, V, F * C]
        return total

    def weigh(self, statistics: Tensor, points: Tensor, folds: Tensor | None = None) -> Tensor:
        """Return the evidence at each point by the regressions that learn from the image: points [P, M, 2] -> [P, M(, C)]."""
        evidence = _at_points(self._evidence(statistics), points)  # [P, F * C, M]
        learners = learning_heads(folds, len(points), self.folds, evidence.device)
        if not self.prior.ndim:
            return (evidence * learners[..., None]).sum(1)
        of_classes = evidence.reshape(len(points), self.folds, self.outputs, -1)
        return (of_classes * learners[..., None, None]).sum(1).movedim(1, 2)

    def _evidence(self, statistics: Tensor) -> Tensor:
        with exact_region(statistics):
            evidence: Tensor = self.evidence(at_least_float32(statistics) * self.scale)
        return evidence  # [P, F * C, h, w]


def judging_heads(folds: Tensor | None, n: int, heads: int, device: torch.device) -> Tensor:
    """Return the weight of each head in what is said of an image, [n, heads]: its own fold's, which has not learned from it.

    Args:
        folds: int64 [n], -1 for an image that no head learns from: the mean of all; None for such images alone.
        n: images.
        heads: F.
        device: of the result.
    """
    if folds is None or heads == 1:
        return torch.full((n, heads), 1 / heads, device=device)
    own = torch.arange(heads, device=device) == folds[:, None]
    return torch.where(folds[:, None] < 0, 1 / heads, own.float())


def learning_heads(folds: Tensor | None, n: int, heads: int, device: torch.device) -> Tensor:
    """Return the weight of each head in the loss of an image, [n, heads]: all but its own fold's; as ``judging_heads``."""
    if folds is None or heads == 1:
        return torch.full((n, heads), 1 / heads, device=device)
    own = torch.arange(heads, device=device) == folds[:, None]
    return torch.where(folds[:, None] < 0, 1 / heads, (~own).float() / (heads - 1))


def _at_points(maps: Tensor, points: Tensor) -> Tensor:
    """Return maps [P, F, h, w] in the cells that hold the points [P, M, 2], [P, F, M]."""
    height, width = maps.shape[2:]
    column = (points[..., 0] * width).floor().long().clamp(0, width - 1)
    row = (points[..., 1] * height).floor().long().clamp(0, height - 1)
    place = (row * width + column)[:, None].expand(-1, maps.shape[1], -1)
    return maps.flatten(2).gather(2, place)


def penalty(decoder: nn.Module, heads: int = 1) -> Tensor:
    """Return half the sum of the squared weights, without biases, per head: ridge for a linear decoder."""
    weights = [p.square().sum() for p in decoder.parameters() if p.requires_grad and p.ndim > 1]
    return torch.stack(weights).sum() / (2 * heads)


class GlobalDecoder(nn.Module):
    """Read the cancer logit, or the scores of several classes, from the mask decoder's output token [P, G, channels]."""

    def __init__(self, params: ModelParams, classes: Classes | None = None) -> None:
        super().__init__()
        self.outputs = n_outputs(classes)
        self.classes: ClassHead | None = class_head(classes)
        self.net = nn.Sequential(
            nn.Linear(params.feature_channels, params.feature_channels),
            nn.ReLU(),
            nn.Linear(params.feature_channels, self.outputs),
        )

    def forward(self, token: Tensor) -> Tensor:
        """Return cancer logits [P, G], or class scores [P, G, C]."""
        with exact_region(token):
            logits: Tensor = self.net(at_least_float32(token))
        return logits.squeeze(-1) if self.outputs == 1 else logits


def crop_patches(images: Tensor, points: Tensor, size: int) -> Tensor:
    """Cut a square patch around every point by one gather; outside the image there is 0.

    Args:
        images: [P, 1, S, S].
        points: [P, M, 2], (x, y) in [0, 1].
        size: side of a patch in pixels.

    Returns:
        [P, M, 1, size, size].
    """
    half = size // 2
    padded = F.pad(images[:, 0], (half, size - half, half, size - half))
    side = images.shape[-1]
    corner = (points * side).floor().long().clamp(0, side - 1)
    offsets = torch.arange(size, device=images.device)
    rows = corner[..., 1, None, None] + offsets[:, None]
    columns = corner[..., 0, None, None] + offsets[None, :]
    prompt = torch.arange(len(images), device=images.device)[:, None, None, None]
    return padded[prompt, rows, columns][:, :, None]


def pool_evidence(evidence: Tensor, pool: str, is_point: Tensor | None = None) -> Tensor:
    """Pool per-point logits [..., k] into one logit [...]: their mean, their log-mean-exp, or the noisy or.

    Where bool [..., k] ``is_point`` is False, the logit does not count; a set of none is 0, without gradient.
    """
    if is_point is not None:
        is_empty = ~is_point.any(-1, keepdim=True)
        return _pool_some(evidence, pool, is_point | is_empty).masked_fill(is_empty[..., 0], 0.0)
    if pool == "mean":
        return evidence.mean(-1)
    if pool == "logsumexp":
        return evidence.logsumexp(-1) - torch.log(torch.tensor(float(evidence.shape[-1])))
    return _noisy_or(F.logsigmoid(-evidence).sum(-1))


def _pool_some(evidence: Tensor, pool: str, is_point: Tensor) -> Tensor:
    count = is_point.sum(-1)
    if pool == "mean":
        return evidence.masked_fill(~is_point, 0.0).sum(-1) / count
    if pool == "logsumexp":
        return (
            evidence.masked_fill(~is_point, -torch.inf).logsumexp(-1)
            - count.to(evidence.dtype).log()
        )
    return _noisy_or(F.logsigmoid(-evidence).masked_fill(~is_point, 0.0).sum(-1))


def _noisy_or(log_miss: Tensor) -> Tensor:
    # logit of 1 - prod(1 - p_i), computed from log prod(1 - p_i) without cancellation for small p.
    return torch.log(-torch.expm1(log_miss.clamp(max=-1e-7))) - log_miss
