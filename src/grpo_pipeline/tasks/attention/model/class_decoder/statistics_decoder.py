"""``class_decoder.kind: statistics``: a regression on statistics of fields around each point, cross-fitted."""

import math

import torch
from torch import Tensor, nn

from grpo_pipeline.core.training.precision import at_least_float32, exact_region
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.model.class_decoder.params import StatisticsParams
from grpo_pipeline.tasks.attention.model.class_decoder.point_decoder import (
    PointDecoder,
    pool_evidence,
)
from grpo_pipeline.tasks.attention.model.field_statistics import REGION_WIDTH, width
from grpo_pipeline.tasks.attention.model.mask_reading import (
    MASK_PARTS,
    SHAPE_WIDTH,
    describe_shape,
    mask_parts,
)


class StatisticsDecoder(PointDecoder):
    """Read the statistics of some fields around each point (``field_statistics``) by a penalised logistic regression.

    The statistics are computed once per image and shared by all point sets; nothing is cropped. With ``region`` the
    statistics of the whole region are read beside them. With F ``folds`` there are F regressions, and none learns from the
    images of its own fold (cross-fitting, Chernozhukov et al. 2018, "Double/debiased machine learning"): what a regression
    says of an image that it has learned by heart is no reward for its points. Images that none learns from get the mean.
    """

    def __init__(self, params: StatisticsParams, classes: Classes | None = None) -> None:
        super().__init__(classes)
        self.folds = params.folds
        channels = width(params.fields)
        # Of the fields' statistics, so that those of the points count about twice as much as the region's.
        self.scale = 2 / math.sqrt(channels)
        # Channel f * C + c is what regression f says of class c; without classes C = 1.
        self.evidence = nn.Conv2d(channels, self.folds * self.outputs, kernel_size=1)
        self.region = (
            nn.Linear(REGION_WIDTH, self.folds * self.outputs, bias=False)
            if params.region
            else None
        )
        # Of each part of the mask, and last of its shape.
        self.mask: nn.ModuleList | None = None
        if params.mask is not None:
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
            region: statistics of the whole region [P, REGION_WIDTH], with ``region``.
            points: [P, G, k, 2], (x, y) in [0, 1]; with k = 0 the region and the learned prior answer.
            is_point: bool [P, G, k], False for padding; None: all are points.
            mask: probability of each pixel of the sets' masks [P, G, 4h, 4w], or [P, 1, 4h, 4w] for all, with ``mask``.
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
        return logits + pool_evidence(evidence, at_heads).movedim(-1, 1)

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
