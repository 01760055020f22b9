"""Read SAM weights from disk: a Hugging Face folder, or a ``.pth`` file of which tensors alone are unpickled."""

import hashlib
import json
import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import SamConfig, SamMaskDecoderConfig, SamPromptEncoderConfig, SamVisionConfig

from grpo_pipeline.tasks.attention.params import CheckpointParams

# Names of weights: from the original ``segment_anything`` package to those of ``transformers``' ``SamModel``.
#
# MedSAM (Ma et al. 2024, arXiv 2304.12306) was trained with the original package and has its names. Every name must have a
# rule: a weight that is not understood is refused, not dropped.

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
            "give a .pth of SAM or MedSAM, or set attention.model.checkpoint.kind to huggingface for a folder"
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


# The architecture of a SAM, read off the shapes of its weights.
#
# A ``.pth`` file holds no configuration, and does not need one: all but one number is visible in the shapes.

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


CONFIG, WEIGHTS = "config.json", "model.safetensors"
PATH, KIND = "attention.model.checkpoint.path", "attention.model.checkpoint.kind"


def read_config(checkpoint: CheckpointParams) -> SamConfig:
    """Read the architecture: from the folder's ``config.json``, or from the shapes in the ``.pth``.

    Raises:
        FileNotFoundError: if the checkpoint or a file of the folder is missing.
        ValueError: if it is of another kind, damaged, or no SAM.
    """
    if checkpoint.kind == "segment_anything":
        weights = _read_original(checkpoint, device="meta")
        shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        return infer_config(shapes, file=checkpoint.path)
    path = _folder_file(checkpoint, CONFIG)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be a JSON file, got {error}; copy it again") from error
    if not isinstance(values, dict) or values.get("model_type") != "sam":
        found = values.get("model_type") if isinstance(values, dict) else values
        raise ValueError(
            f"{path} must have the model_type 'sam', got {found!r}; give the folder of a SamModel"
        )
    return SamConfig.from_dict(values)


def read_weights(checkpoint: CheckpointParams) -> dict[str, Tensor]:
    """Read the weights under the names of ``SamModel``, float32 on the CPU.

    Raises:
        FileNotFoundError: if the checkpoint or a file of the folder is missing.
        ValueError: if it is of another kind, damaged, or no SAM.
    """
    original = checkpoint.kind == "segment_anything"
    weights = (
        _read_original(checkpoint, device="cpu")
        if original
        else _read_safetensors(_folder_file(checkpoint, WEIGHTS))
    )
    # One matrix under two names: transformers writes either or both, segment-anything knows one.
    if found := {BASIS, TIED_BASIS} & weights.keys():
        weights[BASIS] = weights[TIED_BASIS] = weights[min(found, key=(BASIS, TIED_BASIS).index)]
    return {name: tensor.to(torch.float32) for name, tensor in weights.items()}


def digest_of(checkpoint: CheckpointParams) -> str:
    """Return the SHA-256 of the content, hexadecimal, wherever it lies.

    Raises:
        FileNotFoundError: if the checkpoint or a file of the folder is missing.
    """
    original = checkpoint.kind == "segment_anything"
    paths = (
        [_original_file(checkpoint)]
        if original
        else [_folder_file(checkpoint, name) for name in (CONFIG, WEIGHTS)]
    )
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _folder_file(checkpoint: CheckpointParams, name: str) -> Path:
    folder = Path(checkpoint.path)
    if folder.is_file():
        raise ValueError(
            f"{PATH} must be a folder under the kind 'huggingface', got the file {folder}; "
            f"give the folder around it, or set {KIND} to segment_anything for a .pth"
        )
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{PATH} must be a folder that exists, got {folder}; correct the path"
        )
    if not (folder / name).is_file():
        held = sorted(path.name for path in folder.iterdir())
        raise FileNotFoundError(
            f"{folder} must hold {CONFIG} and {WEIGHTS}, got {held}; write it with SamModel.save_pretrained"
        )
    return folder / name


def _original_file(checkpoint: CheckpointParams) -> Path:
    path = Path(checkpoint.path)
    if path.is_dir():
        raise ValueError(
            f"{PATH} must be a .pth file under the kind 'segment_anything', got the folder {path}; "
            f"give the file, or set {KIND} to huggingface"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{PATH} must be a file that exists, got {path}; correct the path")
    return path


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ValueError(
            f"{path} must be a whole safetensors file, got {error}; copy or download it again"
        ) from error


def _read_original(checkpoint: CheckpointParams, *, device: str) -> dict[str, Tensor]:
    """Read a ``.pth``; on the device ``meta`` the tensors have shapes and no values, and the file is hardly read."""
    path = _original_file(checkpoint)
    content = _load_restricted(path, device)
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        # Training scripts put optimiser and epoch beside it.
        content = content["model"]
    if not isinstance(content, dict) or not all(
        isinstance(value, Tensor) for value in content.values()
    ):
        is_dict = isinstance(content, dict)
        got = f"the keys {list(content)[:5]}" if is_dict else type(content).__name__
        raise ValueError(
            f"{path} must hold named tensors, by themselves or under the key 'model', got {got}; "
            "save it again as torch.save(model.state_dict(), path)"
        )
    return rename_original(
        {name.removeprefix("module."): tensor for name, tensor in content.items()}, file=str(path)
    )


def _load_restricted(path: Path, device: str) -> Any:
    """Load tensors and plain containers, nothing that could run code."""
    with path.open("rb") as file:
        is_archive = file.read(2) == b"PK"
    if is_archive and not zipfile.is_zipfile(path):
        size = path.stat().st_size
        raise ValueError(
            f"{path} must be a whole .pth file, got {size} bytes that break off; copy or download it again"
        )
    try:
        return torch.load(path, map_location=device, weights_only=True)
    # The refusal is an UnpicklingError, whose module this package does not import; a damaged file raises several others.
    except Exception as error:
        raise ValueError(
            f"{path} must be a .pth file that loads with weights_only=True, got {type(error).__name__}: {_told(error)}; download "
            "it again if it is damaged, and where you trust its source load it elsewhere and save model.state_dict() alone"
        ) from error


def _told(error: Exception) -> str:
    """Return what a reader said of a file; torch's refusal without its advice to load the file all the same."""
    said = " ".join(str(error).split())
    if "weights_only" not in said:
        return str(error).strip().partition("\n")[0]
    named = re.search(r"GLOBAL ([\w.]+)", said)
    return f"it holds {named[1] if named else 'something else'}, and must hold tensors alone"
