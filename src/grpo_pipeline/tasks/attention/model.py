"""The trainable model of the attention task: SAM, the policy network and one class decoder."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import SamModel

from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.decoders import GlimpseDecoder, GlobalDecoder
from grpo_pipeline.tasks.attention.encoder_input import encoder_input
from grpo_pipeline.tasks.attention.model_params import CheckpointParams, ModelParams
from grpo_pipeline.tasks.attention.policy import PolicyNetwork
from grpo_pipeline.tasks.attention.pretrained import build_net, load_net
from grpo_pipeline.tasks.attention.sam import Sam
from grpo_pipeline.tasks.attention.texture import FilterBank

# A real encoder compares every cell with every other: 4 images of 64 x 64 cells at once, where no graph is kept.
CELLS_AT_ONCE = 4 * 64 * 64


class AttentionModel(nn.Module):
    """Everything with weights; the task decides what is called when."""

    sam: Sam
    texture: FilterBank
    policy: PolicyNetwork
    class_decoder: GlimpseDecoder | GlobalDecoder
    checkpoint: CheckpointParams | None

    def __init__(self, params: ModelParams, image_size: int, net: SamModel | None = None) -> None:
        super().__init__()
        self.checkpoint = params.checkpoint
        if params.checkpoint is not None and net is None:
            net = load_net(params, image_size)
        self.sam = Sam(params, image_size, net)
        self.texture = FilterBank(params.texture_channels)
        self.policy = PolicyNetwork(params.feature_channels, params.policy_channels, self.texture.width)
        self.class_decoder = GlimpseDecoder(params) if params.class_decoder == "glimpse" else GlobalDecoder(params)
        if params.encoder == "frozen":
            self.sam.net.vision_encoder.requires_grad_(False)

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Self:
        """Build the model of ``AttentionTask.describe`` for weights to be loaded into, without the checkpoint it began from."""
        config = description.get("sam_config")
        net = None if config is None else build_net(config)
        return cls(ModelParams.model_validate(description["model"]), description["image_size"], net)

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

    def decode(self, features: Tensor, images: Tensor, points: Tensor, bag: Tensor) -> Outcomes:
        """Decode point sets [P, G, k, 2] into class logits, bag probabilities and heatmaps.

        Args:
            features: [P, C, h, w].
            images: [P, 1, S, S].
            points: [P, G, k, 2], (x, y) in [0, 1]; k may be 0.
            bag: [P, 4h, 4w], weights of the heatmap pixels.
        """
        decoded = self.sam.decode(features, points)
        if isinstance(self.class_decoder, GlimpseDecoder):
            class_logits = self.class_decoder(images, points)
        else:
            class_logits = self.class_decoder(decoded.token)
        weight = bag / bag.sum((1, 2), keepdim=True).clamp(min=1e-6)
        bag_probs = (decoded.mask_logits.sigmoid() * weight[:, None]).sum((2, 3))
        return Outcomes(class_logits=class_logits, bag_probs=bag_probs, mask_logits=decoded.mask_logits)
