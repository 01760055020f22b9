"""The trainable model of the attention task: SAM, the policy network and one class decoder."""

from torch import Tensor, nn

from grpo_pipeline.tasks.attention.batch import Outcomes
from grpo_pipeline.tasks.attention.decoders import GlimpseDecoder, GlobalDecoder
from grpo_pipeline.tasks.attention.model_params import ModelParams
from grpo_pipeline.tasks.attention.policy import PolicyNetwork
from grpo_pipeline.tasks.attention.sam import Sam
from grpo_pipeline.tasks.attention.texture import FilterBank


class AttentionModel(nn.Module):
    """Everything with weights; the task decides what is called when."""

    sam: Sam
    texture: FilterBank
    policy: PolicyNetwork
    class_decoder: GlimpseDecoder | GlobalDecoder

    def __init__(self, params: ModelParams, image_size: int) -> None:
        super().__init__()
        self.sam = Sam(params, image_size)
        self.texture = FilterBank(params.texture_channels)
        self.policy = PolicyNetwork(params.feature_channels, params.policy_channels, self.texture.width)
        self.class_decoder = GlimpseDecoder(params) if params.class_decoder == "glimpse" else GlobalDecoder(params)
        if params.encoder == "frozen":
            self.sam.net.vision_encoder.requires_grad_(False)

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
