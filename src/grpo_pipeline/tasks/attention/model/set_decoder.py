"""Read point sets: SAM draws a mask and a heatmap with them as prompts, and a class decoder says what they show."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from grpo_pipeline.core.training.precision import at_least_float32, exact_region
from grpo_pipeline.tasks.attention.batch import Outcomes
from grpo_pipeline.tasks.attention.clinical_prompts import ClinicalPrompt, ClinicalReadOut
from grpo_pipeline.tasks.attention.model.class_decoder.global_decoder import GlobalDecoder
from grpo_pipeline.tasks.attention.model.class_decoder.params import StatisticsParams
from grpo_pipeline.tasks.attention.model.class_decoder.point_decoder import PointDecoder
from grpo_pipeline.tasks.attention.model.class_decoder.statistics_decoder import (
    StatisticsDecoder,
    judging_heads,
    learning_heads,
)
from grpo_pipeline.tasks.attention.model.mask_reading import read_at_points, seeded_masks
from grpo_pipeline.tasks.attention.model.policy_head import PolicyNetwork
from grpo_pipeline.tasks.attention.model.sam import Decoded, Sam
from grpo_pipeline.tasks.attention.model.segmentation import PixelFeatures
from grpo_pipeline.tasks.attention.model.stop_head import StopHead


@dataclass(frozen=True)
class Judgement:
    """Class logits of point sets [P, G], of the label or the positive classes, and ``scores`` [P, G, C] of all classes.

    Of a decoder with folds ``heads`` are all its regressions and ``learners`` their weights in the loss, [P, G, F] each.
    """

    logits: Tensor
    scores: Tensor | None
    heads: Tensor | None
    learners: Tensor | None


class SetDecoder(nn.Module):
    """The half of the model that reads point sets; :class:`AttentionModel` adds encoders, policy and how they are built."""

    sam: Sam
    class_decoder: PointDecoder | GlobalDecoder
    stop: StopHead | None
    policy: PolicyNetwork
    clinical: ClinicalPrompt | None
    clinical_read_out: ClinicalReadOut | None
    detail: PixelFeatures | None
    statistics: StatisticsParams | None
    heatmap_level: float

    def decode(
        self,
        features: Tensor,
        images: Tensor,
        points: Tensor,
        bag: Tensor,
        clinical: Tensor | None = None,
        *,
        is_point: Tensor | None = None,
        statistics: Tensor | None = None,
        region: Tensor | None = None,
        folds: Tensor | None = None,
        with_heatmap: bool = True,
        with_segmentation: bool = False,
        detail: Tensor | None = None,
        heat: Tensor | None = None,
    ) -> Outcomes:
        """Decode point sets [P, G, k, 2] into class logits, bag probabilities, heatmaps and prompted masks.

        Args:
            features: [P, C, h, w].
            images: [P, 1, S, S].
            points: [P, G, k, 2], (x, y) in [0, 1]; k may be 0.
            bag: [P, 4h, 4w], weights of the heatmap pixels.
            clinical: values [P, F], NaN where unknown; None for a model without clinical prompts.
            is_point: bool [P, G, k], False for padding; None: all are points.
            statistics: of the fields around the cells, for a class decoder that reads them.
            region: of the whole region, for one that reads them.
            folds: int64 [P] of the patients, for one with folds.
            with_heatmap: False leaves out the mask decoder, most of the work, where the class decoder does not read it: then
                mask_logits are [P, G, 0, 0] (or ``heat``) and bag_probs 0.
            with_segmentation: whether the prompted mask is drawn; it is, too, where the class decoder reads it.
            detail: [P, D, 4h, 4w], features of the pixels that it is drawn with beside SAM's.
            heat: logits of the heatmap [P, 4h, 4w] of all sets; None: the mask decoder draws one of each.

        Raises:
            ValueError: if the model has clinical prompts and gets no values.
        """
        prompts = self._embed_clinical(clinical)
        reads_token = isinstance(self.class_decoder, GlobalDecoder)
        with_segmentation = with_segmentation or self._reads_mask == "prompted"
        with_heatmap = with_heatmap or with_segmentation or reads_token
        decoded = (
            self._decode_mask(
                features,
                points,
                prompts,
                is_point=is_point,
                with_segmentation=with_segmentation,
                detail=detail,
            )
            if with_segmentation or reads_token or (with_heatmap and heat is None)
            else Decoded.nothing(points)
        )
        if heat is not None:
            of_sets = heat[:, None].expand(-1, points.shape[1], -1, -1)
            decoded = replace(decoded, mask_logits=of_sets)
        said = self._classify(
            images,
            points,
            decoded.token,
            prompts,
            is_point=is_point,
            statistics=statistics,
            region=region,
            folds=folds,
            mask=self.mask_to_read(images, points, is_point, decoded.segmentation_logits),
        )
        if with_heatmap:
            weight = bag / bag.sum((1, 2), keepdim=True).clamp(min=1e-6)
            bag_probs = (decoded.mask_logits.sigmoid() * weight[:, None]).sum((2, 3))
        else:
            bag_probs = torch.zeros_like(said.logits)
        return Outcomes(
            class_logits=said.logits,
            bag_probs=bag_probs,
            mask_logits=decoded.mask_logits,
            heads=said.heads,
            learners=said.learners,
            segmentation_logits=decoded.segmentation_logits,
            class_scores=said.scores,
        )

    def _decode_mask(
        self,
        features: Tensor,
        points: Tensor,
        prompts: Tensor | None,
        *,
        is_point: Tensor | None,
        with_segmentation: bool,
        detail: Tensor | None,
    ) -> Decoded:
        """Decode the point sets by SAM; to the heatmap come its level and, where pixels have features, their own heat."""
        decoded = self.sam.decode(
            features,
            points,
            prompts,
            is_point=is_point,
            with_segmentation=with_segmentation,
            detail=self._prompted(detail, points, is_point) if with_segmentation else None,
        )
        heatmap = decoded.mask_logits + self.heatmap_level
        if self.detail is None or detail is None:
            return replace(decoded, mask_logits=heatmap)
        with exact_region(detail):
            heat = self.detail.heat(at_least_float32(detail))  # [P, 1, 4h, 4w], for all G sets
        return replace(decoded, mask_logits=heatmap + heat)

    def _prompted(
        self,
        detail: Tensor | None,
        points: Tensor,
        is_point: Tensor | None,
    ) -> Tensor | None:
        """Return the pixels that masks are drawn with beside SAM's: told how near the points are."""
        if self.detail is None or detail is None:
            return None
        with exact_region(detail):
            return self.detail.prompted(at_least_float32(detail), points, is_point)

    def _classify(
        self,
        images: Tensor,
        points: Tensor,
        token: Tensor,
        prompts: Tensor | None,
        *,
        is_point: Tensor | None,
        statistics: Tensor | None,
        region: Tensor | None,
        folds: Tensor | None,
        mask: Tensor | None,
    ) -> Judgement:
        """Return what the class decoder says of point sets [P, G, k, 2].

        Tokens [P, G, C] are read by ``global`` alone, and masks [P, G, 4h, 4w] (or [P, 1, 4h, 4w], for all sets) by one with
        a ``mask``.
        """
        heads = learners = scores = None
        if isinstance(self.class_decoder, StatisticsDecoder) and statistics is not None:
            logits = self.class_decoder.heads(
                statistics, region, points, is_point, mask
            )  # [P, G, F(, C)]
            n, device = self.class_decoder.folds, logits.device
            judges = judging_heads(folds, len(logits), n, device)[:, None]
            class_logits = (logits * (judges if logits.ndim == 3 else judges[..., None])).sum(2)
            if n > 1:
                heads = logits
                learners = learning_heads(folds, len(logits), n, device)[:, None]
                learners = learners.expand(logits.shape[:3])
        elif isinstance(self.class_decoder, PointDecoder):
            class_logits = self.class_decoder(images, points, is_point)
        else:
            class_logits = self.class_decoder(token)
        if self.clinical_read_out is not None and prompts is not None:
            with exact_region(prompts):
                told = self.clinical_read_out(prompts)[:, None]
            class_logits = class_logits + told
            heads = None if heads is None else heads + told[:, :, None]
        if (head := self.class_decoder.classes) is not None:
            scores, class_logits = head(class_logits), head.log_odds(class_logits)
            heads = None if heads is None else head(heads)
        return Judgement(class_logits, scores, heads, learners)

    def mask_to_read(
        self,
        images: Tensor,
        points: Tensor,
        is_point: Tensor | None,
        segmentation: Tensor | None,
    ) -> Tensor | None:
        """Return the mask that the class decoder reads, probabilities [P, G, 4h, 4w]; None where it reads none.

        Without gradient: outlines teach the prompted mask, and the label does not make it a code.

        Args:
            images: [P, 1, S, S].
            points: [P, G, k, 2], (x, y) in [0, 1].
            is_point: bool [P, G, k], False for padding; None: all are points.
            segmentation: logits of the prompted mask [P, G, 4h, 4w], where that is read.
        """
        if self._reads_mask is None or not points.shape[2]:
            return None
        if self._reads_mask == "seeded":
            return seeded_masks(images, points, is_point, 4 * self.sam.grid)
        assert segmentation is not None  # drawn for it
        return read_at_points(segmentation.detach().sigmoid(), points, is_point)

    @property
    def _reads_mask(self) -> Literal["prompted", "seeded"] | None:
        return None if self.statistics is None else self.statistics.mask

    def _embed_clinical(self, values: Tensor | None) -> Tensor | None:
        if self.clinical is None:
            return None
        if values is None:
            raise ValueError(
                "the batch must hold clinical values for a model with clinical prompts, got None; use NaN for unknown"
            )
        with exact_region(values):
            tokens: Tensor = self.clinical(values)
        return tokens
