"""Rename weights of the original ``segment_anything`` package to the names of ``transformers``' ``SamModel``.

MedSAM (Ma et al. 2024, arXiv 2304.12306) was trained with the original package and has its names. Every name must have a
rule: a weight that is not understood is refused, not dropped.
"""

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

Value = TypeVar("Value")

BASIS = "shared_image_embedding.positional_embedding"

TIED_BASIS = "prompt_encoder.shared_embedding.positional_embedding"

SHOWN = 3

_PARAM = r"\.(weight|bias)"

_BLOCK = r"image_encoder\.blocks\.(\d+)"

_TWO_WAY = r"mask_decoder\.transformer"

_ATTENTION = r"(self_attn|cross_attn_token_to_image|cross_attn_image_to_token)\.([qkv]|out)_proj"

_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"image_encoder\.pos_embed", r"vision_encoder.pos_embed"),
        (r"image_encoder\.patch_embed\.proj" + _PARAM, r"vision_encoder.patch_embed.projection.\1"),
        (_BLOCK + r"\.norm([12])" + _PARAM, r"vision_encoder.layers.\1.layer_norm\2.\3"),
        (_BLOCK + r"\.attn\.rel_pos_([hw])", r"vision_encoder.layers.\1.attn.rel_pos_\2"),
        (
            _BLOCK + r"\.(attn\.qkv|attn\.proj|mlp\.lin1|mlp\.lin2)" + _PARAM,
            r"vision_encoder.layers.\1.\2.\3",
        ),
        (r"image_encoder\.neck\.0\.weight", r"vision_encoder.neck.conv1.weight"),
        (r"image_encoder\.neck\.1" + _PARAM, r"vision_encoder.neck.layer_norm1.\1"),
        (r"image_encoder\.neck\.2\.weight", r"vision_encoder.neck.conv2.weight"),
        (r"image_encoder\.neck\.3" + _PARAM, r"vision_encoder.neck.layer_norm2.\1"),
        (r"prompt_encoder\.pe_layer\.positional_encoding_gaussian_matrix", BASIS),
        (
            r"prompt_encoder\.point_embeddings\.(\d+)\.weight",
            r"prompt_encoder.point_embed.\1.weight",
        ),
        (r"prompt_encoder\.(not_a_point_embed|no_mask_embed)\.weight", r"prompt_encoder.\1.weight"),
        (r"prompt_encoder\.mask_downscaling\.0" + _PARAM, r"prompt_encoder.mask_embed.conv1.\1"),
        (
            r"prompt_encoder\.mask_downscaling\.1" + _PARAM,
            r"prompt_encoder.mask_embed.layer_norm1.\1",
        ),
        (r"prompt_encoder\.mask_downscaling\.3" + _PARAM, r"prompt_encoder.mask_embed.conv2.\1"),
        (
            r"prompt_encoder\.mask_downscaling\.4" + _PARAM,
            r"prompt_encoder.mask_embed.layer_norm2.\1",
        ),
        (r"prompt_encoder\.mask_downscaling\.6" + _PARAM, r"prompt_encoder.mask_embed.conv3.\1"),
        (r"mask_decoder\.(iou_token|mask_tokens)\.weight", r"mask_decoder.\1.weight"),
        (
            _TWO_WAY + r"\.layers\.(\d+)\." + _ATTENTION + _PARAM,
            r"mask_decoder.transformer.layers.\1.\2.\3_proj.\4",
        ),
        (
            _TWO_WAY + r"\.layers\.(\d+)\.norm([1-4])" + _PARAM,
            r"mask_decoder.transformer.layers.\1.layer_norm\2.\3",
        ),
        (
            _TWO_WAY + r"\.layers\.(\d+)\.mlp\.lin([12])" + _PARAM,
            r"mask_decoder.transformer.layers.\1.mlp.lin\2.\3",
        ),
        (
            _TWO_WAY + r"\.final_attn_token_to_image\.([qkv]|out)_proj" + _PARAM,
            r"mask_decoder.transformer.final_attn_token_to_image.\1_proj.\2",
        ),
        (
            _TWO_WAY + r"\.norm_final_attn" + _PARAM,
            r"mask_decoder.transformer.layer_norm_final_attn.\1",
        ),
        (r"mask_decoder\.output_upscaling\.0" + _PARAM, r"mask_decoder.upscale_conv1.\1"),
        (r"mask_decoder\.output_upscaling\.1" + _PARAM, r"mask_decoder.upscale_layer_norm.\1"),
        (r"mask_decoder\.output_upscaling\.3" + _PARAM, r"mask_decoder.upscale_conv2.\1"),
    )
)

_HEAD_LAYER = re.compile(
    r"(mask_decoder\.(?:output_hypernetworks_mlps\.\d+|iou_prediction_head))\.layers\.(\d+)"
    + _PARAM
)


def rename_original(weights: Mapping[str, Value], *, file: str) -> dict[str, Value]:
    """Return the entries under the names of ``SamModel``; values are not looked at.

    Args:
        weights: name in ``segment_anything`` -> anything.
        file: where they are from.

    Raises:
        ValueError: naming the first names without a rule.
    """
    # Count the linear layers of each small network of the mask decoder.
    depths: dict[str, int] = {}
    for match in filter(None, map(_HEAD_LAYER.fullmatch, weights)):
        depths[match[1]] = max(depths.get(match[1], 0), int(match[2]) + 1)
    renamed = {name: _rename(name, depths) for name in weights}
    unknown = [name for name, new in renamed.items() if new is None]
    if unknown:
        raise ValueError(
            f"the names in {file} must be those of segment-anything's SAM, got {listed(unknown)}; "
            "give a .pth of SAM or MedSAM, or set attention.model.encoder.format to huggingface for a folder"
        )
    return {new: weights[name] for name, new in renamed.items() if new is not None}


def listed(names: Collection[str]) -> str:
    """Return the first names in quotes and the number of the others."""
    shown = ", ".join(f"'{name}'" for name in list(names)[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _rename(name: str, depths: Mapping[str, int]) -> str | None:
    if match := _HEAD_LAYER.fullmatch(name):
        # ``transformers`` gives the first and the last linear layer names of their own.
        head, layer, param = match[1], int(match[2]), match[3]
        inner = "proj_out" if layer == depths[head] - 1 else f"layers.{layer - 1}"
        return f"{head}.{'proj_in' if layer == 0 else inner}.{param}"
    for pattern, replacement in _RULES:
        if match := pattern.fullmatch(name):
            return match.expand(replacement)
    return None
