"""The trainable model of the attention task: SAM, the policy network and one class decoder."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import SamModel

from grpo_pipeline.core.training.precision import at_least_float32, exact_region
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionContext
from grpo_pipeline.tasks.attention.clinical import ClinicalStatistics
from grpo_pipeline.tasks.attention.clinical_prompts import (
    ClinicalPrompt,
    ClinicalReadOut,
)
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.model.class_decoder.build import build_class_decoder
from grpo_pipeline.tasks.attention.model.class_decoder.global_decoder import GlobalDecoder
from grpo_pipeline.tasks.attention.model.class_decoder.point_decoder import PointDecoder
from grpo_pipeline.tasks.attention.model.class_decoder.statistics_decoder import StatisticsDecoder
from grpo_pipeline.tasks.attention.model.class_scores import n_outputs
from grpo_pipeline.tasks.attention.model.encoder.encoder_input import encoder_input
from grpo_pipeline.tasks.attention.model.encoder.encoder_tuning import tune_encoder
from grpo_pipeline.tasks.attention.model.encoder.params import SamEncoder
from grpo_pipeline.tasks.attention.model.encoder.pretrained import build_net, load_net
from grpo_pipeline.tasks.attention.model.field_statistics import (
    describe_fields,
    describe_region,
    width,
)
from grpo_pipeline.tasks.attention.model.filter_bank import FilterBank
from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.model.point_sets import SetLogits
from grpo_pipeline.tasks.attention.model.policy_head import PolicyNetwork
from grpo_pipeline.tasks.attention.model.sam import Decoded, Sam, cell_centres
from grpo_pipeline.tasks.attention.model.segmentation import PixelFeatures
from grpo_pipeline.tasks.attention.model.set_decoder import SetDecoder
from grpo_pipeline.tasks.attention.model.stop_head import StopHead

# Of a cell of the heatmap: what a policy all but rules out is not infinitely far from what it considers.
LEAST_LOG_CHANCE = -30.0

# A real encoder compares every cell with every other: 4 images of 64 x 64 cells at once, where no graph is kept.
CELLS_AT_ONCE = 4 * 64 * 64


class AttentionModel(SetDecoder):
    """Everything with weights; the task decides what is called when."""

    sam: Sam
    texture: FilterBank
    policy: PolicyNetwork
    class_decoder: PointDecoder | GlobalDecoder
    stop: StopHead | None
    checkpoint: SamEncoder | None
    clinical: ClinicalPrompt | None
    clinical_read_out: ClinicalReadOut | None
    detail: PixelFeatures | None
    policy_encoder: Any

    def __init__(
        self,
        params: ModelParams,
        image_size: int,
        net: SamModel | None = None,
        *,
        clinical: ClinicalStatistics | None = None,
        classes: Classes | None = None,
        heatmap_level: float = 0.0,
    ) -> None:
        """Build the model with random weights, or around a SAM that has some.

        Args:
            params: sizes and switches.
            image_size: side of the square model image in pixels.
            net: a SAM to start from; None builds one, or reads the checkpoint of ``params``.
            clinical: columns and normalisation of the clinical prompts; None without ``params.clinical``.
            classes: that the class decoder tells apart; None for a label.
            heatmap_level: log-odds that are added to every pixel of the decoder's heatmap.
        """
        super().__init__()
        self.checkpoint = params.checkpoint
        self.statistics, self.heatmap_level = params.statistics, heatmap_level
        self.points = params.points
        if params.checkpoint is not None and net is None:
            net = load_net(params, image_size)
        self.sam = Sam(params, image_size, net)
        policy, channels = params.policy, params.mask_decoder.channels
        self.texture = FilterBank(policy.filters)
        # With statistics the policy reads them too, and the evidence that the decoder sees in each cell.
        described = 0 if self.statistics is None else width(self.statistics.fields)
        looks = self.texture.width + (0 if self.statistics is None else described + 1)
        looks += 0 if params.detail is None else params.detail.channels
        self.policy_reads = policy.reads.kind
        if self.policy_reads == "statistics":
            looks = described
            self.texture.requires_grad_(False)  # nobody reads it
        self.policy = PolicyNetwork(channels, policy.channels, looks, reads=self.policy_reads)
        self.class_decoder = build_class_decoder(params.class_decoder, channels, classes)
        tune_encoder(self.sam.net.vision_encoder, params.encoder.tuning)
        # A copy, so that both start from the same weights and nothing else is drawn in another way.
        self.policy_encoder = None
        if params.copies_encoder:
            self.policy_encoder = copy.deepcopy(self.sam.net.vision_encoder)
        # Last, so that everything else starts as it does without them.
        self.clinical = self.clinical_read_out = None
        if clinical is not None:
            self.clinical = ClinicalPrompt(clinical, channels)
            if not isinstance(self.class_decoder, GlobalDecoder):
                self.clinical_read_out = ClinicalReadOut(
                    len(clinical.columns), channels, n_outputs(classes)
                )
        self.detail = None
        if params.detail is not None:
            self.detail = PixelFeatures(
                params.detail.channels, self.sam.pixel_channels, self.sam.grid
            )
        self.stop = None
        if policy.stop is not None:
            decisions = params.points - policy.stop.min_points
            self.stop = StopHead(channels + looks, policy.channels, decisions)

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Self:
        """Build the model of ``AttentionTask.describe`` for weights to be loaded into, without the checkpoint it began from."""
        config = description.get("sam_config")
        net = None if config is None else build_net(config)
        columns = description.get("clinical_columns")
        clinical = None if columns is None else ClinicalStatistics.neutral(tuple(columns))
        params = ModelParams.model_validate(description["model"])
        told = description.get("classes")
        classes = None if told is None else Classes.model_validate(told)
        return cls(
            params,
            description["image_size"],
            net,
            clinical=clinical,
            classes=classes,
            heatmap_level=description.get("heatmap_level", 0.0),  # models of before have none
        )

    def components(self) -> dict[str, list[nn.Module]]:
        """Return the modules of each component, by the names of their learning rates."""
        return {
            "encoder": [self.sam.net.vision_encoder],
            "policy_encoder": [] if self.policy_encoder is None else [self.policy_encoder],
            "policy_head": [
                self.texture,
                self.policy.trunk,
                self.policy.attention,
                *([self.stop] if self.stop else []),
            ],
            "value_head": [self.policy.value],
            "mask_decoder": [self.sam.net.prompt_encoder, self.sam.net.mask_decoder],
            "class_decoder": [self.class_decoder],
            "detail": [] if self.detail is None else [self.detail],
            "clinical": [
                module for module in (self.clinical, self.clinical_read_out) if module is not None
            ],
        }

    def encode(self, batch: AttentionBatch) -> Tensor:
        """Encode a batch's images into features [P, C, h, w], in the form that the encoder's weights know."""
        return self._encode(self.sam.encode, batch)

    def encode_for_policy(self, batch: AttentionBatch) -> Tensor | None:
        """Encode the images by the policy's own encoder, [P, C, h, w]; None where it reads those of the decoders."""
        if self.policy_encoder is None:
            return None
        return self._encode(lambda images: self.policy_encoder(images).last_hidden_state, batch)

    def _encode(self, encode: Callable[[Tensor], Tensor], batch: AttentionBatch) -> Tensor:
        if self.checkpoint is None:
            return encode(batch.images)
        channels = self.sam.net.config.vision_config.num_channels
        images = encoder_input(self.checkpoint.normalisation, batch, channels=channels)
        if torch.is_grad_enabled():
            return encode(images)
        size = max(1, CELLS_AT_ONCE // self.sam.grid**2)
        return torch.cat(
            [encode(images[start : start + size]) for start in range(0, len(images), size)]
        )

    def propose(self, context: AttentionContext) -> tuple[SetLogits, Tensor]:
        """Return what the policy says about the point sets of each core, and its values [P]."""
        looks = context.texture
        if self.policy_reads == "statistics" and context.statistics is not None:
            looks = context.statistics
        elif isinstance(self.class_decoder, StatisticsDecoder) and context.statistics is not None:
            # The evidence is read as it is: the policy's gradient teaches the decoder nothing.
            evidence = self.class_decoder.map_evidence(context.statistics, context.folds).detach()
            looks = torch.cat([looks, context.statistics, evidence], dim=1)
        if context.detail_cells is not None and self.policy_reads != "statistics":
            looks = torch.cat([looks, context.detail_cells], dim=1)
        features = context.features if self.policy_encoder is None else context.policy_features
        if features is None:
            raise ValueError(
                "the context must hold policy_features for a policy that reads an own encoder, got None; make it with "
                "AttentionTask.encode"
            )
        logits, values = self.policy(features, looks)
        if context.prior is not None:
            logits = logits + context.prior
        stops = None if self.stop is None else self.stop(features, looks, context.cells)
        return SetLogits(logits, stops), values

    @torch.no_grad()
    def map_heat(self, context: AttentionContext) -> Tensor:
        """Return the heatmap that is read off the class decoder and the policy, logits [P, 4h, 4w]; nothing learns from it.

            log p_v = log sigmoid(class logit of points in cell v alone) + log pi_v - max log pi

        with pi the chance that the policy's first point is v: evidence counts where the policy looks, as class activation maps
        weigh features where they are read (Zhou et al. 2016, "Learning deep features for discriminative localization"). A mask
        that the class decoder reads is that of the k likeliest cells, wherever v is. Every pixel of a cell has its value; cells
        outside the region have nearly none.
        """
        grid, n = self.sam.grid, len(context.cells)
        everywhere = cell_centres(torch.arange(grid**2, device=context.cells.device), grid)
        points = everywhere[None, :, None].expand(n, -1, -1, -1)  # V sets of one point
        attention = self.propose(context)[0].cells.masked_fill(~context.cells, -torch.inf)
        of_cells = self._classify(
            context.images,
            points,
            Decoded.nothing(points).token,
            self._embed_clinical(context.clinical),
            is_point=None,
            statistics=context.statistics,
            region=context.region,
            folds=context.folds,
            mask=self._mask_of_likeliest(context, attention),
        ).logits  # [P, V]
        with exact_region(attention):
            chance = F.logsigmoid(at_least_float32(of_cells))
            chance = chance + at_least_float32(attention) - attention.amax(1, keepdim=True)
            chance = chance.clamp(LEAST_LOG_CHANCE, -1e-6)
            logits = chance - torch.log(-torch.expm1(chance))
        pixels = logits.reshape(n, grid, grid)
        return pixels.repeat_interleave(4, 1).repeat_interleave(4, 2)

    def _mask_of_likeliest(self, context: AttentionContext, attention: Tensor) -> Tensor | None:
        """Return the mask that the class decoder reads at the k likeliest cells, [P, 1, 4h, 4w]; None where it reads none."""
        if self.statistics is None or self.statistics.mask is None:
            return None
        points = cell_centres(attention.topk(self.points).indices, self.sam.grid)[
            :, None
        ]  # [P, 1, k, 2]
        drawn = None
        if self.statistics.mask == "prompted":
            drawn = self._decode_mask(
                context.features,
                points,
                self._embed_clinical(context.clinical),
                is_point=None,
                with_segmentation=True,
                detail=context.detail,
            ).segmentation_logits
        return self.mask_to_read(context.images, points, None, drawn)

    def describe_detail(self, images: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return features of the pixels, for mask and heatmap [P, D, 4h, 4w], and of the cells, for the policy [P, D, h, w]."""
        return (None, None) if self.detail is None else self.detail(images)

    def describe_fields(self, batch: AttentionBatch) -> Tensor | None:
        """Return the statistics [P, D, h, w] of the batch's images where the class decoder reads them."""
        if self.statistics is None:
            return None
        return describe_fields(
            batch.images, batch.cells, self.sam.grid, fields=self.statistics.fields
        )

    def describe_region(self, batch: AttentionBatch) -> Tensor | None:
        """Return the statistics [P, R] of the whole region where the class decoder reads them."""
        if self.statistics is None or not self.statistics.region:
            return None
        return describe_region(
            batch.images, batch.cells, batch.levels, self.sam.grid, fields=self.statistics.fields
        )
