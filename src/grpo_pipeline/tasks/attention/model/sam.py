"""Adapt SAM to policies: encode an image once, decode any number of point sets on it.

This file owns the coordinate frame. Points are (x, y) in [0, 1] of the square model image, x to the right, y downwards;
cell v = i * w + j of the h x w feature grid has its centre at ((j + 0.5) / w, (i + 0.5) / h). SAM's random Fourier
encoding sees exactly these numbers, for points and for the dense grid alike, so a point in the centre of a cell has the
encoding of that cell (test: ``test_point_lights_its_cell_and_untrained_features_carry_the_image``).

Architecture: Kirillov et al. 2023, "Segment Anything" (arXiv 2304.02643); layers from ``transformers``. How this differs:
images have one grey channel (three equal ones where a checkpoint wants them), and the mask decoder also returns its output
token for the class decoder.
"""

from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    SamConfig,
    SamMaskDecoderConfig,
    SamModel,
    SamPromptEncoderConfig,
    SamVisionConfig,
)

from grpo_pipeline.core.training.precision import at_least_float32, exact_region
from grpo_pipeline.tasks.attention.model.encoder.params import NewEncoder
from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.model.two_way_transformer import two_way


@dataclass(frozen=True)
class Decoded:
    """Outputs of the mask decoder for N = P*G point sets: mask_logits [P, G, 4h, 4w] and token [P, G, C].

    ``segmentation_logits`` [P, G, 4h, 4w] are those of the prompted mask, where it is asked for.
    """

    mask_logits: Tensor
    token: Tensor
    segmentation_logits: Tensor | None = None

    @classmethod
    def nothing(cls, points: Tensor) -> Self:
        """Return outputs without pixels and channels for points [P, G, k, 2]."""
        shape = points.shape[:2]
        return cls(mask_logits=points.new_zeros(*shape, 0, 0), token=points.new_zeros(*shape, 0))


class Sam(nn.Module):
    """SAM's three boxes (image encoder, prompt encoder, mask decoder) with a group axis in the decoder."""

    net: Any

    def __init__(self, params: ModelParams, image_size: int, net: SamModel | None = None) -> None:
        """Build a randomly initialised SAM for square grey images, or wrap one that is there.

        Args:
            params: sizes of the model.
            image_size: side S of the image in pixels, a multiple of ``params.patch_size``.
            net: a SAM of these sizes with weights of its own.

        Raises:
            ValueError: if ``image_size`` is not a multiple of the patch size.
        """
        super().__init__()
        if image_size % params.patch_size:
            raise ValueError(
                f"the image size must be a multiple of attention.model.patch_size = {params.patch_size}, got {image_size}; "
                "change attention.data.image_size or the patch size"
            )
        self.net = fresh_net(_sam_config(params, image_size)) if net is None else net
        # SAM's IoU branch and its mask prompt are never used here: frozen, so that no optimiser or norm counts them.
        self.net.mask_decoder.iou_prediction_head.requires_grad_(False)
        self.net.prompt_encoder.mask_embed.requires_grad_(False)
        self.grid = image_size // params.patch_size

    def encode(self, images: Tensor) -> Tensor:
        """Encode images [P, 1, S, S] into features [P, C, h, w]; the costly part, once per image.

        A net with more input channels reads images [P, channels, S, S].
        """
        features: Tensor = self.net.vision_encoder(images).last_hidden_state
        return features

    @property
    def pixel_channels(self) -> int:
        """Channels of the pixels that masks are drawn with."""
        return int(self.net.mask_decoder.upscale_conv2.out_channels)

    def dense_encoding(self) -> Tensor:
        """Return the positional encoding of every cell, [1, C, h, w]."""
        centres = (
            torch.arange(self.grid, device=self._basis.device, dtype=self._basis.dtype) + 0.5
        ) / self.grid
        y, x = torch.meshgrid(centres, centres, indexing="ij")
        return self._fourier(torch.stack([x, y], dim=-1)).permute(2, 0, 1)[None]

    def encode_points(self, points: Tensor) -> Tensor:
        """Embed points [..., k, 2] of the foreground as tokens [..., k + 1, C]; the last token is SAM's "not a point"."""
        prompt = self.net.prompt_encoder
        tokens = self._fourier(points) + prompt.point_embed[1].weight[0]
        padding = prompt.not_a_point_embed.weight[0].expand(*tokens.shape[:-2], 1, -1)
        return torch.cat([tokens, padding], dim=-2)

    def decode(
        self,
        features: Tensor,
        points: Tensor,
        prompts: Tensor | None = None,
        *,
        is_point: Tensor | None = None,
        with_segmentation: bool = False,
        detail: Tensor | None = None,
    ) -> Decoded:
        """Decode G point sets per image with one call and no copy of the image features per sample before attention.

        Args:
            features: [P, C, h, w], as returned by :meth:`encode`.
            points: [P, G, k, 2], (x, y) in [0, 1]; k may be 0 (no prompt).
            prompts: further tokens of each image, [P, F, C], the same for its G point sets.
            is_point: bool [P, G, k], False for padding, which has no influence on any output; None: all are points.
            with_segmentation: whether the prompted mask is drawn, too: by the first of the tokens that SAM has for several masks.
            detail: [P, G, C / 8 + 1, 4h, 4w], added to the pixels that this mask is drawn with, and the last to its logits.

        Returns:
            Mask logits of SAM's single-mask output, its token, and those of the prompted mask.
        """
        decoder = self.net.mask_decoder
        n_prompts, group_size = points.shape[:2]
        tokens, is_token = self._tokens(points, prompts, is_point)
        positions = self.dense_encoding().expand_as(features)
        positions = positions.repeat_interleave(group_size, 0)
        # The dense prompt is SAM's "no mask".
        image = features + self.net.prompt_encoder.no_mask_embed.weight.reshape(1, -1, 1, 1)
        image = image.repeat_interleave(group_size, 0)
        if is_token is None:
            tokens, keys = decoder.transformer(
                point_embeddings=tokens,
                image_embeddings=image,
                image_positional_embeddings=positions,
                attention_similarity=None,
            )
        else:
            tokens, keys = two_way(decoder.transformer, tokens, image, positions, is_token)
        keys = keys.transpose(2, 3).reshape(n_prompts * group_size, -1, self.grid, self.grid)
        pixels = self._upscale(keys)
        pixels = pixels.reshape(n_prompts, group_size, *pixels.shape[1:])  # [P, G, C / 8, 4h, 4w]
        token, drawn = tokens[:, :, 1], None
        if with_segmentation:
            of_mask = pixels if detail is None else pixels + detail[:, :, :-1]
            drawn = self._mask_logits(of_mask, tokens[:, :, 2], output=1)
            drawn = drawn if detail is None else drawn + detail[:, :, -1]
        return Decoded(self._mask_logits(pixels, token, output=0), token, drawn)

    def _tokens(
        self, points: Tensor, prompts: Tensor | None, is_point: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the decoder's tokens [P, G, T, C], and which of them are there, bool [P, G, T]; None: all.

        They are the outputs, the points (padding as "not a point"), then SAM's own "not a point", and further prompts.
        """
        decoder = self.net.mask_decoder
        n_prompts, group_size = points.shape[:2]
        outputs = torch.cat([decoder.iou_token.weight, decoder.mask_tokens.weight])
        encoded = self.encode_points(points)
        if is_point is not None:
            is_kept = F.pad(is_point, (0, 1), value=True).unsqueeze(-1)
            encoded = torch.where(
                is_kept, encoded, self.net.prompt_encoder.not_a_point_embed.weight[0]
            )
        parts = [outputs.expand(n_prompts, group_size, -1, -1), encoded]
        if prompts is not None:
            parts.append(prompts.unsqueeze(1).expand(-1, group_size, -1, -1))
        tokens = torch.cat(parts, dim=2)
        if is_point is None:
            return tokens, None  # every point is there
        is_token = torch.ones(tokens.shape[:3], dtype=torch.bool, device=tokens.device)
        first, k = len(outputs), points.shape[2]
        is_token[:, :, first : first + k] = is_point
        return tokens, is_token

    def _upscale(self, keys: Tensor) -> Tensor:
        decoder = self.net.mask_decoder
        upscaled = decoder.activation(decoder.upscale_layer_norm(decoder.upscale_conv1(keys)))
        upscaled = decoder.activation(decoder.upscale_conv2(upscaled))
        return cast(Tensor, upscaled)

    def _mask_logits(self, pixels: Tensor, token: Tensor, *, output: int) -> Tensor:
        """Draw a mask [P, G, 4h, 4w] with the weights that its token says, one for each channel of the pixels."""
        weights = self.net.mask_decoder.output_hypernetworks_mlps[output](token)
        return at_least_float32(torch.einsum("pgc,pgchw->pghw", weights, pixels))

    @property
    def _basis(self) -> Tensor:
        basis: Tensor = self.net.shared_image_embedding.positional_embedding
        return basis

    def _fourier(self, points: Tensor) -> Tensor:
        # An angle may be many turns: bfloat16 would lose the fraction of the last one.
        with exact_region(points):
            angles = 2 * torch.pi * ((2 * points - 1) @ self._basis)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


def fresh_net(config: SamConfig) -> SamModel:
    """Return a SAM with random weights, drawn as segment-anything's constructors draw them.

    transformers means its own start for weights that are loaded over it: normal with a standard deviation of 0.02 for every
    layer, and of ``hidden_size // 2`` for the positional basis. With that basis the encodings of neighbouring cells have nothing
    in common, and through that decoder the heatmap's loss hardly reaches the encoder (``test_sam.py``). segment-anything
    leaves layers as torch makes them, uniform in -+ 1 / sqrt(fan-in), embeddings standard normal, and so is its basis.
    """
    net = SamModel(config)
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d | nn.Embedding):
            module.reset_parameters()
    nn.init.normal_(net.shared_image_embedding.positional_embedding)
    return net


def cell_centres(cells: Tensor, grid: int) -> Tensor:
    """Return the (x, y) in [0, 1] of cell numbers v = i * grid + j; [...] int64 -> [..., 2] float32."""
    row, column = cells // grid, cells % grid
    return (torch.stack([column, row], dim=-1).to(torch.float32) + 0.5) / grid


def _sam_config(params: ModelParams, image_size: int) -> SamConfig:
    encoder, decoder = params.encoder, params.mask_decoder
    if not isinstance(encoder, NewEncoder):
        raise ValueError(
            "attention.model.encoder.kind must be new for fresh weights, got sam; load its file by load_net"
        )
    vision = SamVisionConfig(
        hidden_size=encoder.width,
        output_channels=decoder.channels,
        num_hidden_layers=encoder.layers,
        num_attention_heads=encoder.heads,
        num_channels=1,
        image_size=image_size,
        patch_size=params.patch_size,
        window_size=encoder.window,
        global_attn_indexes=[encoder.layers - 1],
        mlp_dim=2 * encoder.width,
        num_pos_feats=decoder.channels // 2,
    )
    prompt = SamPromptEncoderConfig(
        hidden_size=decoder.channels,
        image_size=image_size,
        patch_size=params.patch_size,
        mask_input_channels=4,  # of the mask prompt, which nobody uses: as few as there may be
    )
    masks = SamMaskDecoderConfig(
        hidden_size=decoder.channels,
        mlp_dim=2 * decoder.channels,
        num_hidden_layers=decoder.layers,
        num_attention_heads=decoder.heads,
        iou_head_hidden_dim=decoder.channels,
    )
    return SamConfig(vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=masks)
