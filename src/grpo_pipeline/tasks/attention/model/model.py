"""The trainable model of the attention task: SAM, the policy network and one class decoder."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import SamModel
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_pipeline.core.params import ExecutionParams
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.core.training.execution import at_least_float32, exact_region
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import (
    AttentionBatch,
    AttentionContext,
    AttentionData,
    Outcomes,
)
from grpo_pipeline.tasks.attention.data.clinical import ClinicalStatistics
from grpo_pipeline.tasks.attention.data.params import Classes
from grpo_pipeline.tasks.attention.model.baselines import oracle_logits
from grpo_pipeline.tasks.attention.model.class_scores import n_outputs
from grpo_pipeline.tasks.attention.model.decoders import (
    FilterBank,
    GlimpseDecoder,
    GlobalDecoder,
    PointDecoder,
    StatisticsDecoder,
    judging_heads,
    learning_heads,
)
from grpo_pipeline.tasks.attention.model.encoder_tuning import tune_encoder
from grpo_pipeline.tasks.attention.model.field_statistics import (
    describe_fields,
    describe_region,
    field_radii,
    width,
)
from grpo_pipeline.tasks.attention.model.point_sets import Again, SetLogits, placed_points
from grpo_pipeline.tasks.attention.model.policy_head import MaskReader, PolicyNetwork, StopHead
from grpo_pipeline.tasks.attention.model.pretrained import build_net, encoder_input, load_net
from grpo_pipeline.tasks.attention.model.sam import Boxes, Decoded, Sam, cell_centres
from grpo_pipeline.tasks.attention.model.segmentation import (
    PixelFeatures,
    read_at_points,
    seeded_masks,
)
from grpo_pipeline.tasks.attention.params import CheckpointParams, ModelParams

# Clinical values as prompt tokens: one token per column beside the tokens of the points.
#
# After ProstNFound (Wilson et al. 2024), whose SAM reads age and PSA as prompts. How this differs: an unknown value has a token
# of its own and is not imputed; known values are dropped to it in training (``clinical_values.drop_values``).


class ClinicalPrompt(nn.Module):
    """Turn clinical values [P, F] into tokens [P, F, C].

        token[p, f] = w_f * (value[p, f] - mean_f) / std_f + e_f    where the value is known
                    = u_f                                           where it is NaN

    w_f, e_f and u_f are learned, [C] each; e_f is the column's embedding and the bias of its linear map at once. Mean and
    standard deviation are buffers: they are saved with the weights, so that a model normalises as it was trained.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, statistics: ClinicalStatistics, channels: int) -> None:
        super().__init__()
        n = len(statistics.columns)
        self.register_buffer("mean", torch.tensor(statistics.mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(statistics.std, dtype=torch.float32))
        # As torch starts a linear map of one input, and SAM its point embeddings.
        self.slope = nn.Parameter(torch.empty(n, channels).uniform_(-1, 1))
        self.column = nn.Parameter(torch.randn(n, channels))
        self.unknown = nn.Parameter(torch.randn(n, channels))

    def forward(self, values: Tensor) -> Tensor:
        """Return tokens [P, F, C]; a value that is NaN has no influence, also on the gradient."""
        is_known = ~values.isnan()
        # Filled before any arithmetic: NaN times a gradient of 0 would be NaN.
        normalised = (torch.where(is_known, values, self.mean) - self.mean) / self.std
        tokens = normalised.unsqueeze(-1) * self.slope + self.column
        return torch.where(is_known.unsqueeze(-1), tokens, self.unknown)


class ClinicalReadOut(nn.Module):
    """Add a linear reading of all tokens to a class logit: for a class decoder that sees patches and no token.

        logit[p] = sum_f r_f . token[p, f] / sqrt(F * C)

    r starts at 0, so that training starts from the decoder alone. The root keeps the logit's change by one step of Adam, which
    moves all F * C weights by the same amount, from growing with their number. With more than one output each has its weights.
    """

    def __init__(self, columns: int, channels: int, outputs: int = 1) -> None:
        super().__init__()
        several = () if outputs == 1 else (outputs,)
        self.weights = nn.Parameter(torch.zeros(*several, columns, channels))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [P], or [P, outputs], from tokens [P, F, C]."""
        if self.weights.ndim > 2:
            tokens = tokens[:, None]
        return (tokens * self.weights).sum((-2, -1)) / math.sqrt(tokens[0].numel())


@dataclass(frozen=True)
class Judgement:
    """Class logits of point sets [P, G], of the label or the positive classes, and ``scores`` [P, G, C] of all classes.

    Of a decoder with folds ``heads`` are all its regressions and ``learners`` their weights in the loss, [P, G, F] each.
    """

    logits: Tensor
    scores: Tensor | None
    heads: Tensor | None
    learners: Tensor | None


# Of a cell of the heatmap: what a policy all but rules out is not infinitely far from what it considers.
LEAST_LOG_CHANCE = -30.0
# A real encoder compares every cell with every other: 4 images of 64 x 64 cells at once, where no graph is kept.
CELLS_AT_ONCE = 4 * 64 * 64


class AttentionModel(nn.Module):
    """Everything with weights; the task decides what is called when."""

    sam: Sam
    texture: FilterBank
    policy: PolicyNetwork
    class_decoder: PointDecoder | GlobalDecoder
    stop: StopHead | None
    checkpoint: CheckpointParams | None
    clinical: ClinicalPrompt | None
    clinical_read_out: ClinicalReadOut | None
    detail: PixelFeatures | None
    mask_reader: MaskReader | None
    policy_encoder: Any

    def __init__(
        self,
        params: ModelParams,
        image_size: int,
        net: SamModel | None = None,
        *,
        clinical: ClinicalStatistics | None = None,
        classes: Classes | None = None,
    ) -> None:
        """Build the model with random weights, or around a SAM that has some.

        Args:
            params: sizes and switches.
            image_size: side of the square model image in pixels.
            net: a SAM to start from; None builds one, or reads the checkpoint of ``params``.
            clinical: columns and normalisation of the clinical prompts; None without ``params.clinical``.
            classes: that the class decoder tells apart; None for a label.

        Raises:
            ValueError: if ``clinical`` is given without ``params.clinical``, or the other way round.
        """
        super().__init__()
        _check_clinical(params, clinical)
        self.checkpoint, self.box = params.checkpoint, params.box
        self.looks_at, self.mask_prompt = params.looks_at, params.mask_prompt
        self.reads_mask = params.reads_mask
        self.points, self.points_per_look = params.points, params.points // params.looks
        if params.checkpoint is not None and net is None:
            net = load_net(params, image_size)
        self.sam = Sam(params, image_size, net)
        self.texture = FilterBank(params.texture_channels)
        # With statistics the policy reads them too, and the evidence that the decoder sees in each cell.
        described = width(co_occurrence=params.co_occurrence)
        looks = self.texture.width + (described + 1) * (params.class_decoder == "statistics")
        looks += params.detail_channels
        if params.policy_reads == "statistics":
            looks = described
            self.texture.requires_grad_(False)  # nobody reads it
        self.policy = PolicyNetwork(
            params.feature_channels,
            params.policy_channels,
            looks,
            params.value_pool,
            reads=params.policy_reads,
            labels=params.point_labels,
        )
        self.policy_reads = params.policy_reads
        self.field_mm, self.co_occurrence = params.field_mm, params.co_occurrence
        self.class_decoder = DECODERS[params.class_decoder](params, classes)
        tune_encoder(self.sam.net.vision_encoder, params)
        # A copy, so that both start from the same weights and nothing else is drawn in another way.
        self.policy_encoder = None
        if params.policy_encoder == "own":
            self.policy_encoder = copy.deepcopy(self.sam.net.vision_encoder)
        # Last, so that everything else starts as it does without them.
        self.clinical = self.clinical_read_out = None
        if clinical is not None:
            self.clinical = ClinicalPrompt(clinical, params.feature_channels)
            if params.class_decoder != "global":
                self.clinical_read_out = ClinicalReadOut(
                    len(clinical.columns), params.feature_channels, n_outputs(classes)
                )
        self.detail = None
        if params.detail_channels:
            channels = self.sam.pixel_channels
            self.detail = PixelFeatures(params.detail_channels, channels, self.sam.grid)
        self.stop = None
        if params.stop is not None:
            inputs = params.feature_channels + looks
            self.stop = StopHead(
                inputs, params.policy_channels, params.points - params.stop.min_points
            )
        self.mask_reader = None
        if params.looks > 1:
            self.mask_reader = MaskReader(
                self.policy.attention.in_channels,
                params.policy_channels,
                labels=2 if params.point_labels == "both" else 1,
                stops=0 if params.stop is None else params.points - params.stop.min_points,
                # A policy that reads a cell alone reads the mask there alone.
                size=3 if params.policy_reads == "image" else 1,
            )

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Self:
        """Build the model of ``AttentionTask.describe`` for weights to be loaded into, without the checkpoint it began from."""
        config = description.get("sam_config")
        net = None if config is None else build_net(config)
        columns = description.get("clinical_columns")
        clinical = None if columns is None else ClinicalStatistics.neutral(tuple(columns))
        # What was exported before there was a choice has the pool of that time.
        params = ModelParams.model_validate({"value_pool": "image"} | description["model"])
        told = description.get("classes")
        classes = None if told is None else Classes.model_validate(told)
        return cls(params, description["image_size"], net, clinical=clinical, classes=classes)

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
        """Return what the policy says about the point sets of each core, and its values [P]; before it has seen a mask."""
        return self.propose_looks(context)[:2]

    def propose_looks(self, context: AttentionContext) -> tuple[SetLogits, Tensor, Again]:
        """Return what ``propose`` does, and what the policy says once it has seen the masks [P, G, V] of G sets per core."""
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
                "the context must hold policy_features for a model with policy_encoder: own, got None; make it with "
                "AttentionTask.encode"
            )
        trunk = self.policy.read(features, looks)
        logits, values = self.policy.judge(trunk, context.cells)
        # The prior is of foreground points: those of the background are for what is no dark blob.
        if context.prior is not None:
            logits = logits + context.prior
        stops = None if self.stop is None else self.stop(features, looks, context.cells)
        first = SetLogits(logits, stops, self.policy.judge_background(trunk))

        def again(seen: Tensor) -> SetLogits:
            if self.mask_reader is None:
                raise ValueError(
                    "the model must look more than once to see a mask, got attention.model.looks = 1; build it with more"
                )
            change = self.mask_reader(trunk, seen)  # [P, G, labels, V]
            cells = (first.cells[:, None] + change[:, :, 0]).flatten(0, 1)
            background = first.background
            if background is not None:
                background = (background[:, None] + change[:, :, 1]).flatten(0, 1)
            stopping = self.mask_reader.change_stops(seen, context.cells)
            if stops is not None and stopping is not None:
                stopping = (stops[:, None] + stopping).flatten(0, 1)
            return SetLogits(cells, stopping, background)

        return first, values, again

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
        if self.reads_mask == "none":
            return None
        points = cell_centres(attention.topk(self.points).indices, self.sam.grid)[
            :, None
        ]  # [P, 1, k, 2]
        drawn = None
        if self.reads_mask == "prompted":
            drawn = self._decode_mask(
                context.features,
                points,
                self._embed_clinical(context.clinical),
                is_point=None,
                is_background=None,
                with_segmentation=True,
                detail=context.detail,
            ).segmentation_logits
        return self._mask_to_read(context.images, points, None, drawn)

    @torch.no_grad()
    def see(self, context: AttentionContext, placed: Rollouts) -> Tensor:
        """Return how sure the mask decoder is of each cell with these points, the mean of 2p - 1 over its pixels: [P, G, V].

        It is 0 where the decoder does not know. Detached: the policy's gradient teaches the decoder nothing.
        """
        placed, is_background = placed_points(placed, context.cells.shape[1])
        points = cell_centres(placed.actions, self.sam.grid)
        decoded = self._decode_mask(
            context.features,
            points,
            self._embed_clinical(context.clinical),
            is_point=None if self.stop is None else placed.is_valid,
            is_background=None if self.policy.background is None else is_background,
            with_segmentation=self.looks_at == "mask",
            detail=context.detail,
        )
        sure = (self._seen(decoded) / 2).tanh()  # 2p - 1
        return F.adaptive_avg_pool2d(sure, self.sam.grid).flatten(2)

    def describe_detail(self, images: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return features of the pixels, for mask and heatmap [P, D, 4h, 4w], and of the cells, for the policy [P, D, h, w]."""
        return (None, None) if self.detail is None else self.detail(images)

    def describe_fields(self, batch: AttentionBatch) -> Tensor | None:
        """Return the statistics [P, D, h, w] of the batch's images where the class decoder reads them."""
        if not isinstance(self.class_decoder, StatisticsDecoder):
            return None
        return describe_fields(
            batch.images,
            batch.cells,
            self.sam.grid,
            radii=self._radii(batch),
            co_occurrence=self.co_occurrence,
        )

    def describe_region(self, batch: AttentionBatch) -> Tensor | None:
        """Return the statistics [P, R] of the whole region where the class decoder reads them."""
        if (
            not isinstance(self.class_decoder, StatisticsDecoder)
            or self.class_decoder.region is None
        ):
            return None
        return describe_region(
            batch.images, batch.cells, batch.levels, self.sam.grid, radii=self._radii(batch)
        )

    def _radii(self, batch: AttentionBatch) -> Tensor | None:
        if self.field_mm is None or batch.spacing is None:
            return None
        size = batch.images.shape[-1]
        return field_radii(self.field_mm, batch.spacing, size=size, grid=self.sam.grid)

    def decode(
        self,
        features: Tensor,
        images: Tensor,
        points: Tensor,
        bag: Tensor,
        clinical: Tensor | None = None,
        *,
        is_point: Tensor | None = None,
        is_background: Tensor | None = None,
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
            is_background: bool [P, G, k], True for points that prompt the mask decoder alone: no class decoder reads them as
                evidence; None: there are none.
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
        with_segmentation = with_segmentation or self.reads_mask == "prompted"
        with_heatmap = with_heatmap or with_segmentation or reads_token
        decoded = (
            self._decode_mask(
                features,
                points,
                prompts,
                is_point=is_point,
                is_background=is_background,
                with_segmentation=with_segmentation,
                detail=detail,
            )
            if with_segmentation or reads_token or (with_heatmap and heat is None)
            else Decoded.nothing(points)
        )
        if heat is not None:
            of_sets = heat[:, None].expand(-1, points.shape[1], -1, -1)
            decoded = replace(decoded, mask_logits=of_sets)
        is_evidence = foreground(is_point, is_background)
        said = self._classify(
            images,
            points,
            decoded.token,
            prompts,
            is_point=is_evidence,
            statistics=statistics,
            region=region,
            folds=folds,
            mask=self._mask_to_read(images, points, is_evidence, decoded.segmentation_logits),
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
        ``reads_mask``.
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

    def _mask_to_read(
        self,
        images: Tensor,
        points: Tensor,
        is_point: Tensor | None,
        segmentation: Tensor | None,
    ) -> Tensor | None:
        """Return the mask that the class decoder reads, [P, G, 4h, 4w]; None where it reads none.

        Without gradient: outlines teach the prompted mask, and the label does not make it a code.
        """
        if self.reads_mask == "none" or not points.shape[2]:
            return None
        if self.reads_mask == "seeded":
            return seeded_masks(images, points, is_point, 4 * self.sam.grid)
        assert segmentation is not None  # drawn for it
        return read_at_points(segmentation.detach().sigmoid(), points, is_point)

    def _decode_mask(
        self,
        features: Tensor,
        points: Tensor,
        prompts: Tensor | None,
        *,
        is_point: Tensor | None,
        is_background: Tensor | None,
        with_segmentation: bool,
        detail: Tensor | None,
    ) -> Decoded:
        """Decode the point sets by SAM; with ``mask_prompt`` look by look, each shown the mask of the one before (no gradient).

        A look in which a set has no point, because it has stopped or the point is left out, refines the mask all the same.
        """

        def decode(end: int, earlier: Tensor | None, *, draws: bool) -> Decoded:
            placed = points[:, :, :end]
            is_there, is_behind = (
                x if x is None else x[..., :end] for x in (is_point, is_background)
            )
            decoded = self.sam.decode(
                features,
                placed,
                prompts,
                is_point=is_there,
                is_background=is_behind,
                boxes=self._box(placed, is_there, is_behind),
                earlier=earlier,
                with_segmentation=draws,
                detail=self._prompted(detail, placed, is_there, is_behind) if draws else None,
            )
            if self.detail is None or detail is None:
                return decoded
            with exact_region(detail):
                heat = self.detail.heat(at_least_float32(detail))  # [P, 1, 4h, 4w], for all G sets
            return replace(decoded, mask_logits=decoded.mask_logits + heat)

        k, earlier = points.shape[2], None
        if self.mask_prompt:
            with torch.no_grad():
                for end in range(self.points_per_look, k, self.points_per_look):
                    earlier = self._seen(decode(end, earlier, draws=self.looks_at == "mask"))
        return decode(k, earlier, draws=with_segmentation)

    def _seen(self, decoded: Decoded) -> Tensor:
        """Return the logits of the mask that a later look is shown."""
        drawn = decoded.segmentation_logits
        return decoded.mask_logits if self.looks_at != "mask" or drawn is None else drawn

    def _box(
        self, points: Tensor, is_point: Tensor | None, is_background: Tensor | None
    ) -> Boxes | None:
        """Return, with ``box: points``, the box around the cells of each set's foreground points; they are as in ``decode``."""
        if self.box == "none" or not points.shape[2]:
            return None
        inside = foreground(is_point, is_background)
        if inside is None:
            inside = torch.ones_like(points[..., 0], dtype=torch.bool)
        return Boxes.around(points, inside, margin=0.5 / self.sam.grid)

    def _prompted(
        self,
        detail: Tensor | None,
        points: Tensor,
        is_point: Tensor | None,
        is_background: Tensor | None,
    ) -> Tensor | None:
        """Return the pixels that masks are drawn with beside SAM's: told how near the foreground points are."""
        if self.detail is None or detail is None:
            return None
        is_point = foreground(is_point, is_background)
        with exact_region(detail):
            return self.detail.prompted(at_least_float32(detail), points, is_point)

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


DECODERS: dict[str, type[PointDecoder | GlobalDecoder]] = {
    "glimpse": GlimpseDecoder,
    "statistics": StatisticsDecoder,
    "global": GlobalDecoder,
}


def foreground(is_point: Tensor | None, is_background: Tensor | None) -> Tensor | None:
    """Return which points are there and of the foreground, bool [P, G, k], from those that are there and those of the background.

    None is all of them, and of the background none.
    """
    if is_background is None:
        return is_point
    return ~is_background if is_point is None else is_point & ~is_background


def _check_clinical(params: ModelParams, clinical: ClinicalStatistics | None) -> None:
    if (params.clinical is None) != (clinical is None):
        rule = "null" if clinical is None else "given"
        found = "none" if clinical is None else str(list(clinical.columns))
        raise ValueError(
            f"attention.model.clinical must be {rule} for a model with the clinical columns {found}, got {params.clinical}; "
            "map attention.data.columns.clinical and build the task with build_task, or switch it off"
        )


# How the image encoder is executed: memory format, activation checkpointing, compilation; no weight is added or renamed.


def prepare_model(model: AttentionModel, execution: ExecutionParams) -> AttentionModel:
    """Set up a model, already on its device, as the parameters say; returns the same model.

    Args:
        model: changed in place.
        execution: ``memory_format``, ``activation_checkpointing`` and ``compile``.
    """
    if execution.memory_format == "channels_last":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for encoder in encoders_of(model):
        if execution.activation_checkpointing == "encoder":
            checkpoint_layers(encoder)
        if execution.compile == "encoder":
            encoder.compile()
    return model


def encoders_of(model: AttentionModel) -> list[nn.Module]:
    """Return the image encoder, and the policy's own where it has one."""
    own = [] if model.policy_encoder is None else [model.policy_encoder]
    return [model.sam.net.vision_encoder, *own]


def checkpoint_layers(encoder: nn.Module) -> int:
    """Make every layer of the encoder keep its input alone, and compute itself again in the backward pass; returns their number.

    The second computation enters the same precision and random state as the first (``torch.utils.checkpoint``, not reentrant),
    so that gradients are those without it.
    """
    layers: list[Any] = [
        layer for layer in encoder.modules() if isinstance(layer, GradientCheckpointingLayer)
    ]
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    return len(layers)


def begin_with_pretraining(model: AttentionModel, start: ModelWeights) -> None:
    """Load the weights of a pretraining (``model/pretraining.py``) into the model's encoders or its pixels, in place.

    Raises:
        ValueError: if they are those of other sizes.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in start.tensors.items():
        part, _, inner = name.partition(".")
        found.setdefault(part, {})[inner] = tensor
    try:
        for encoder in encoders_of(model) if "encoder" in found else ():
            encoder.load_state_dict(found["encoder"])
        if "detail" in found and model.detail is not None:
            model.detail.load_state_dict(found["detail"])
    except RuntimeError as error:
        sizes = start.config.get("model")
        raise ValueError(
            f"attention.model must have the sizes of the pretraining that it begins with, got others than {sizes}; leave the "
            "sizes alone, or pretrain with them"
        ) from error


# Where the point sets of a training arm come from: the policy's map, or a fixed proposal that the policy is held against.


def proposal_logits(
    policy: AttentionModel,
    context: AttentionContext,
    proposal: Literal["policy", "uniform", "oracle"],
) -> SetLogits:
    """Return the logits that points are drawn from.

    ``policy``: the policy's attention map, and its stop head where it has one; the others always draw k points. ``uniform``:
    0 everywhere; ``oracle``: 50 nats more inside the lesion, so that the points lie there while it has cells left, and
    uniform in the region where a core has no known lesion.

    Raises:
        ValueError: for ``oracle`` on a batch that does not hold the lesion.
    """
    if proposal == "policy":
        return policy.propose(context)[0]
    if proposal == "uniform":
        zeros = torch.zeros(
            context.cells.shape, dtype=context.features.dtype, device=context.cells.device
        )
        return SetLogits(at_least_float32(zeros))
    if context.lesion_cells is None:
        raise ValueError(
            "the batch must hold the lesion for proposal: oracle, got one without; make it from task.with_oracle(data)"
        )
    return SetLogits(oracle_logits(context.lesion_cells, context.cells))


def empty_sets(n_prompts: int, group_size: int, *, device: torch.device) -> Rollouts:
    """Return G sets of no point for each prompt: actions [P, G, 0]."""
    actions = torch.empty(n_prompts, group_size, 0, dtype=torch.int64, device=device)
    return Rollouts(
        actions=actions,
        logprobs=torch.empty(actions.shape, device=device),
        is_valid=torch.empty(actions.shape, dtype=torch.bool, device=device),
    )


def show_lesion(data: AttentionData) -> AttentionData:
    """Return the data with batches that hold the cells of the lesion.

    Raises:
        ValueError: if no core has a lesion outline: the oracle would be the uniform proposal under another name.
    """
    if not data.examples.lesion.any():
        raise ValueError(
            f"proposal: oracle must have cores with a lesion outline, got none among {len(data.examples.table)}; name the "
            "outlines in attention.data.columns.lesion_mask, or use proposal: uniform"
        )
    return replace(data, shows_lesion=True)
