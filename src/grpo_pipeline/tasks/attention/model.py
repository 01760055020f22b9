"""The trainable model of the attention task: SAM, the policy network and one class decoder."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import SamModel

from grpo_pipeline.core.precision import exact_region
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionContext, Outcomes
from grpo_pipeline.tasks.attention.clinical_prompt import ClinicalPrompt, ClinicalReadOut
from grpo_pipeline.tasks.attention.clinical_values import ClinicalStatistics
from grpo_pipeline.tasks.attention.decoders import GlimpseDecoder, GlobalDecoder
from grpo_pipeline.tasks.attention.encoder_input import encoder_input
from grpo_pipeline.tasks.attention.encoder_tuning import tune_encoder
from grpo_pipeline.tasks.attention.model_params import CheckpointParams, ModelParams
from grpo_pipeline.tasks.attention.policy import PolicyNetwork
from grpo_pipeline.tasks.attention.pretrained import build_net, load_net
from grpo_pipeline.tasks.attention.sam import Sam
from grpo_pipeline.tasks.attention.sets import SetLogits
from grpo_pipeline.tasks.attention.stop_head import StopHead
from grpo_pipeline.tasks.attention.texture import FilterBank

# A real encoder compares every cell with every other: 4 images of 64 x 64 cells at once, where no graph is kept.
CELLS_AT_ONCE = 4 * 64 * 64


class AttentionModel(nn.Module):
    """Everything with weights; the task decides what is called when."""

    sam: Sam
    texture: FilterBank
    policy: PolicyNetwork
    class_decoder: GlimpseDecoder | GlobalDecoder
    stop: StopHead | None
    checkpoint: CheckpointParams | None
    clinical: ClinicalPrompt | None
    clinical_read_out: ClinicalReadOut | None

    def __init__(
        self, params: ModelParams, image_size: int, net: SamModel | None = None, *, clinical: ClinicalStatistics | None = None
    ) -> None:
        """Build the model with random weights, or around a SAM that has some.

        Args:
            params: sizes and switches.
            image_size: side of the square model image in pixels.
            net: a SAM to start from; None builds one, or reads the checkpoint of ``params``.
            clinical: columns and normalisation of the clinical prompts; None without ``params.clinical``.

        Raises:
            ValueError: if ``clinical`` is given without ``params.clinical``, or the other way round.
        """
        super().__init__()
        _check_clinical(params, clinical)
        self.checkpoint = params.checkpoint
        if params.checkpoint is not None and net is None:
            net = load_net(params, image_size)
        self.sam = Sam(params, image_size, net)
        self.texture = FilterBank(params.texture_channels)
        self.policy = PolicyNetwork(params.feature_channels, params.policy_channels, self.texture.width, params.value_pool)
        self.class_decoder = GlimpseDecoder(params) if params.class_decoder == "glimpse" else GlobalDecoder(params)
        tune_encoder(self.sam.net.vision_encoder, params)
        # Last, so that everything else starts as it does without them.
        self.clinical = self.clinical_read_out = None
        if clinical is not None:
            self.clinical = ClinicalPrompt(clinical, params.feature_channels)
            if params.class_decoder == "glimpse":
                self.clinical_read_out = ClinicalReadOut(len(clinical.columns), params.feature_channels)
        self.stop = None
        if params.stop is not None:
            inputs = params.feature_channels + self.texture.width
            self.stop = StopHead(inputs, params.policy_channels, params.points - params.stop.min_points)

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Self:
        """Build the model of ``AttentionTask.describe`` for weights to be loaded into, without the checkpoint it began from."""
        config = description.get("sam_config")
        net = None if config is None else build_net(config)
        columns = description.get("clinical_columns")
        clinical = None if columns is None else ClinicalStatistics.neutral(tuple(columns))
        # What was exported before there was a choice has the pool of that time.
        params = ModelParams.model_validate({"value_pool": "image"} | description["model"])
        return cls(params, description["image_size"], net, clinical=clinical)

    def encode(self, batch: AttentionBatch) -> Tensor:
        """Encode a batch's images into features [P, C, h, w], in the form that the encoder's weights know."""
        if self.checkpoint is None:
            return self.sam.encode(batch.images)
        channels = self.sam.net.config.vision_config.num_channels
        images = encoder_input(self.checkpoint.normalisation, batch, channels=channels)
        if torch.is_grad_enabled():
            return self.sam.encode(images)
        size = max(1, CELLS_AT_ONCE // self.sam.grid**2)
        return torch.cat([self.sam.encode(images[start : start + size]) for start in range(0, len(images), size)])

    def propose(self, context: AttentionContext) -> tuple[SetLogits, Tensor]:
        """Return what the policy says about the point sets of each core, and its values [P]."""
        logits, values = self.policy(context.features, context.texture, context.cells)
        stops = None if self.stop is None else self.stop(context.features, context.texture, context.cells)
        return SetLogits(logits, stops), values

    def decode(
        self,
        features: Tensor,
        images: Tensor,
        points: Tensor,
        bag: Tensor,
        clinical: Tensor | None = None,
        *,
        is_point: Tensor | None = None,
    ) -> Outcomes:
        """Decode point sets [P, G, k, 2] into class logits, bag probabilities and heatmaps.

        Args:
            features: [P, C, h, w].
            images: [P, 1, S, S].
            points: [P, G, k, 2], (x, y) in [0, 1]; k may be 0.
            bag: [P, 4h, 4w], weights of the heatmap pixels.
            clinical: values [P, F], NaN where unknown; None for a model without clinical prompts.
            is_point: bool [P, G, k], False for padding; None: all are points.

        Raises:
            ValueError: if the model has clinical prompts and gets no values.
        """
        prompts = self._embed_clinical(clinical)
        decoded = self.sam.decode(features, points, prompts, is_point=is_point)
        if isinstance(self.class_decoder, GlimpseDecoder):
            class_logits = self.class_decoder(images, points, is_point)
        else:
            class_logits = self.class_decoder(decoded.token)
        if self.clinical_read_out is not None and prompts is not None:
            with exact_region(features):
                class_logits = class_logits + self.clinical_read_out(prompts)[:, None]
        weight = bag / bag.sum((1, 2), keepdim=True).clamp(min=1e-6)
        bag_probs = (decoded.mask_logits.sigmoid() * weight[:, None]).sum((2, 3))
        return Outcomes(class_logits=class_logits, bag_probs=bag_probs, mask_logits=decoded.mask_logits)

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


def _check_clinical(params: ModelParams, clinical: ClinicalStatistics | None) -> None:
    if (params.clinical is None) != (clinical is None):
        rule = "null" if clinical is None else "given"
        found = "none" if clinical is None else str(list(clinical.columns))
        raise ValueError(
            f"attention.model.clinical must be {rule} for a model with the clinical columns {found}, got {params.clinical}; "
            "map attention.data.columns.clinical and build the task with build_task, or switch it off"
        )
