"""Read the architecture of a SAM off the shapes of its weights.

A ``.pth`` file holds no configuration, and does not need one: all but one number is visible in the shapes.
"""

import re
from collections.abc import Mapping

from transformers import SamConfig, SamMaskDecoderConfig, SamPromptEncoderConfig, SamVisionConfig

from grpo_pipeline.tasks.attention.model.encoder.weight_names import listed

# Not visible in any shape; 8 in all published SAM and MedSAM weights (segment_anything/build_sam.py).
DECODER_HEADS = 8

# segment-anything leaves its two-way transformer at torch's default; transformers' own default is 1e-6.
DECODER_NORM_EPS = 1e-5

Shapes = Mapping[str, tuple[int, ...]]

TELLING = (
    "vision_encoder.pos_embed",
    "vision_encoder.patch_embed.projection.weight",
    "vision_encoder.layers.0.attn.rel_pos_h",
    "vision_encoder.layers.0.mlp.lin1.weight",
    "vision_encoder.neck.conv1.weight",
    "shared_image_embedding.positional_embedding",
    "prompt_encoder.no_mask_embed.weight",
    "prompt_encoder.mask_embed.conv2.weight",
    "mask_decoder.mask_tokens.weight",
    "mask_decoder.transformer.layers.0.mlp.lin1.weight",
    "mask_decoder.transformer.layers.0.cross_attn_token_to_image.q_proj.weight",
    "mask_decoder.iou_prediction_head.proj_in.weight",
)


def infer_config(shapes: Shapes, *, file: str) -> SamConfig:
    """Return the configuration of the SAM that has these shapes.

    Args:
        shapes: name in ``SamModel`` -> shape.
        file: where they are from.

    Raises:
        ValueError: naming the first weights that tell a size and are missing, or relative position embeddings that fit no window.
    """
    _check_telling(shapes, file)
    vision = _vision_config(shapes, file)
    prompt = SamPromptEncoderConfig(
        hidden_size=shapes["prompt_encoder.no_mask_embed.weight"][1],
        image_size=vision.image_size,
        patch_size=vision.patch_size,
        mask_input_channels=shapes["prompt_encoder.mask_embed.conv2.weight"][0],
        num_point_embeddings=_count(shapes, r"prompt_encoder\.point_embed"),
    )
    return SamConfig(
        vision_config=vision,
        prompt_encoder_config=prompt,
        mask_decoder_config=_decoder_config(shapes),
    )


def _vision_config(shapes: Shapes, file: str) -> SamVisionConfig:
    _, grid, _, width = shapes["vision_encoder.pos_embed"]
    _, channels, patch, _ = shapes["vision_encoder.patch_embed.projection.weight"]
    layers = _count(shapes, r"vision_encoder\.layers")
    window, global_layers = _windows(shapes, layers, grid, file=file)
    return SamVisionConfig(
        hidden_size=width,
        output_channels=shapes["vision_encoder.neck.conv1.weight"][0],
        num_hidden_layers=layers,
        num_attention_heads=width // shapes["vision_encoder.layers.0.attn.rel_pos_h"][1],
        num_channels=channels,
        image_size=grid * patch,
        patch_size=patch,
        window_size=window,
        global_attn_indexes=global_layers,
        mlp_dim=shapes["vision_encoder.layers.0.mlp.lin1.weight"][0],
        num_pos_feats=shapes["shared_image_embedding.positional_embedding"][1],
        qkv_bias="vision_encoder.layers.0.attn.qkv.bias" in shapes,
    )


def _windows(shapes: Shapes, layers: int, grid: int, *, file: str) -> tuple[int, list[int]]:
    """Return the side of the windows (0 = there are none) and the numbers of the global layers."""
    lengths = [shapes[f"vision_encoder.layers.{i}.attn.rel_pos_h"][0] for i in range(layers)]
    windows = {(length + 1) // 2 for length in lengths if length != 2 * grid - 1}
    if len(windows) > 1:
        raise ValueError(
            f"the relative position embeddings in {file} must belong to one window size beside the {grid} x {grid} grid, "
            f"got windows of {sorted(windows)} cells; give a Hugging Face folder, whose config.json names its layers"
        )
    return next(iter(windows), 0), [i for i, length in enumerate(lengths) if length == 2 * grid - 1]


def _decoder_config(shapes: Shapes) -> SamMaskDecoderConfig:
    layer = "mask_decoder.transformer.layers.0"
    outputs, width = shapes["mask_decoder.mask_tokens.weight"]
    return SamMaskDecoderConfig(
        hidden_size=width,
        mlp_dim=shapes[f"{layer}.mlp.lin1.weight"][0],
        num_hidden_layers=_count(shapes, r"mask_decoder\.transformer\.layers"),
        num_attention_heads=DECODER_HEADS,
        attention_downsample_rate=width
        // shapes[f"{layer}.cross_attn_token_to_image.q_proj.weight"][0],
        num_multimask_outputs=outputs - 1,
        iou_head_depth=_count(shapes, r"mask_decoder\.iou_prediction_head\.layers") + 2,
        iou_head_hidden_dim=shapes["mask_decoder.iou_prediction_head.proj_in.weight"][0],
        layer_norm_eps=DECODER_NORM_EPS,
    )


def _check_telling(shapes: Shapes, file: str) -> None:
    layers = range(_count(shapes, r"vision_encoder\.layers"))
    telling = (*TELLING, *(f"vision_encoder.layers.{i}.attn.rel_pos_h" for i in layers))
    if missing := [name for name in dict.fromkeys(telling) if name not in shapes]:
        raise ValueError(
            f"{file} must hold the weights that tell a SAM's sizes (named as in transformers), got none for {listed(missing)}; "
            "give the weights of a whole SAM, not of a part or an adapter"
        )


def _count(shapes: Shapes, stem: str) -> int:
    """Count the distinct numbers that follow a stem."""
    return len(
        {match[1] for match in (re.match(stem + r"\.(\d+)\.", name) for name in shapes) if match}
    )
