"""Load SAM or MedSAM weights, at their own image size or at another one (docs/checkpoints.md).

The architecture is that of the file, whatever ``attention.model`` says of its sizes; ``adopt_checkpoint`` writes the file's
sizes into the parameters before anything is built, so that grid, policy and decoders fit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import SamConfig, SamModel

from grpo_pipeline.tasks.attention.batch import AttentionBatch
from grpo_pipeline.tasks.attention.model.encoder.checkpoint_files import (
    digest_of,
    listed,
    read_config,
    read_weights,
)
from grpo_pipeline.tasks.attention.params import CheckpointParams, ModelParams

# Position embeddings of SAM's image encoder, moved to another grid.
#
# Two kinds, both learned at one grid (64 x 64 cells for 1024 pixels): an absolute one per cell, and, in every attention layer,
# one per signed distance between two rows and two columns. Window layers look no further than their window, whatever the size
# of the image: theirs stay.


def resize_absolute(embedding: Tensor, grid: int) -> Tensor:
    """Interpolate one vector per cell, bicubic over cell centres.

    Source: Dosovitskiy et al. 2021, arXiv 2010.11929, section 3.2; bicubic as in public vision transformers.

    Args:
        embedding: [1, h, w, C].
        grid: side of the new grid, in cells.

    Returns:
        [1, grid, grid, C]; the same tensor where the grid is the same.
    """
    if embedding.shape[1:3] == (grid, grid):
        return embedding
    planes = F.interpolate(
        embedding.permute(0, 3, 1, 2), size=(grid, grid), mode="bicubic", align_corners=False
    )
    return planes.permute(0, 2, 3, 1).contiguous()


def resize_relative(embedding: Tensor, grid: int) -> Tensor:
    """Interpolate one vector per signed distance, linearly, as segment-anything does each time it runs.

    Source: Li et al. 2022, "Exploring plain vision transformer backbones for object detection", arXiv 2203.16527; the
    interpolation is that of ``segment_anything``'s ``get_rel_pos``.

    Args:
        embedding: [2 * side - 1, C], distances from -(side - 1) to side - 1.
        grid: side of the new grid, in cells.

    Returns:
        [2 * grid - 1, C]; the same tensor where the length is the same.
    """
    length = 2 * grid - 1
    if len(embedding) == length:
        return embedding
    return F.interpolate(embedding.T[None], size=length, mode="linear", align_corners=False)[
        0
    ].T.contiguous()


def fit_positions(
    weights: dict[str, Tensor], *, grid: int, global_layers: tuple[int, ...]
) -> dict[str, Tensor]:
    """Return the weights with the position embeddings of a ``grid`` x ``grid`` encoder.

    Args:
        weights: by the names of ``SamModel``.
        grid: side of the encoder's grid, in cells.
        global_layers: numbers of the layers that attend over the whole grid.
    """
    fitted = dict(weights)
    absolute = "vision_encoder.pos_embed"
    relative = [
        f"vision_encoder.layers.{i}.attn.rel_pos_{axis}" for i in global_layers for axis in "hw"
    ]
    if absolute in fitted:
        fitted[absolute] = resize_absolute(fitted[absolute], grid)
    for name in filter(fitted.__contains__, relative):
        fitted[name] = resize_relative(fitted[name], grid)
    return fitted


def adopt_checkpoint(params: ModelParams, image_size: int) -> ModelParams:
    """Return the parameters with the sizes of the checkpoint; unchanged where none is given.

    Args:
        params: of the model.
        image_size: side of the square model image in pixels.

    Raises:
        FileNotFoundError: if the checkpoint is missing.
        ValueError: if it cannot be read, or the image size is no multiple of its patch.
    """
    if params.checkpoint is None:
        return params
    config: Any = read_config(params.checkpoint)
    check_channels(params.checkpoint, config.vision_config.num_channels)
    sizes = _sizes(config)
    if image_size % sizes["patch_size"]:
        raise ValueError(
            f"attention.data.image_size must be a multiple of the checkpoint's patch of {sizes['patch_size']} pixels, "
            f"got {image_size}; change it"
        )
    return ModelParams.model_validate(params.model_dump() | sizes)


def load_net(params: ModelParams, image_size: int) -> SamModel:
    """Build the checkpoint's SAM for square images of ``image_size`` pixels and fill in its weights; draws no random number.

    The Fourier basis of the positions is frozen: in segment-anything it is no parameter.

    Args:
        params: of the model, as ``adopt_checkpoint`` returns them.
        image_size: side S of the image in pixels, a multiple of the patch.

    Raises:
        FileNotFoundError: if the checkpoint is missing.
        ValueError: if ``params`` do not have its sizes, or it cannot be read, or its weights do not fit its architecture.
    """
    if params.checkpoint is None:
        raise ValueError(
            "attention.model.checkpoint must be given to load weights, got null; give path, kind and normalisation"
        )
    checkpoint = params.checkpoint
    values = read_config(checkpoint).to_dict()
    values["vision_config"]["image_size"] = image_size
    grid = image_size // values["vision_config"]["patch_size"]
    values["prompt_encoder_config"] |= {"image_size": image_size, "image_embedding_size": grid}
    config = SamConfig.from_dict(values)
    check_sizes(params, config)
    with torch.device("meta"):
        net = SamModel(config)
    weights = fit_positions(
        read_weights(checkpoint), grid=grid, global_layers=global_layers(config)
    )
    check_fit(
        weights,
        {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()},
        checkpoint.path,
    )
    net.load_state_dict(weights, assign=True)
    return freeze_basis(net)


def build_net(config: Mapping[str, Any]) -> SamModel:
    """Build a SAM with random weights from the configuration of one that was loaded, its Fourier basis frozen."""
    return freeze_basis(SamModel(SamConfig.from_dict(dict(config))))


def fingerprint_of(checkpoint: CheckpointParams) -> dict[str, str]:
    """Return what decides which numbers a checkpoint gives: its content, not where it lies, and the normalisation."""
    return {"sha256": digest_of(checkpoint), "normalisation": checkpoint.normalisation}


def global_layers(config: Any) -> tuple[int, ...]:
    """Return the numbers of the encoder's layers that attend over the whole grid; without windows, all of them."""
    vision = config.vision_config
    return (
        tuple(vision.global_attn_indexes)
        if vision.window_size
        else tuple(range(vision.num_hidden_layers))
    )


def check_sizes(params: ModelParams, config: SamConfig) -> None:
    """Refuse parameters that say something else than the checkpoint: the grid and the decoders would not fit.

    Raises:
        ValueError: naming the first such parameter.
    """
    for name, size in _sizes(config).items():
        if getattr(params, name) != size:
            raise ValueError(
                f"attention.model.{name} must be {size} as in the checkpoint, got {getattr(params, name)}; "
                "put the parameters through adopt_checkpoint first, as build_task does"
            )


def check_fit(
    weights: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], path: str
) -> None:
    """Refuse weights that are not exactly those of the architecture.

    Raises:
        ValueError: naming the first that are missing, unknown or of another shape.
    """
    missing, unknown = (
        [name for name in shapes if name not in weights],
        [name for name in weights if name not in shapes],
    )
    other = [
        f"{name} {tuple(weights[name].shape)}"
        for name in shapes
        if name in weights and weights[name].shape != shapes[name]
    ]
    found = {"missing": missing, "unknown": unknown, "of another shape": other}
    if misfits := [f"{kind}: {listed(names)}" for kind, names in found.items() if names]:
        raise ValueError(
            f"{path} must hold exactly the weights of its SAM, got {'; '.join(misfits)}; "
            "give the weights of a whole SAM, not of a part, an adapter or a variant"
        )


def freeze_basis(net: SamModel) -> SamModel:
    """Make the two names of the Fourier basis one parameter and freeze it; returns the same module."""
    basis = net.shared_image_embedding.positional_embedding
    net.prompt_encoder.shared_embedding.positional_embedding = basis
    basis.requires_grad_(False)
    return net


def _sizes(config: Any) -> dict[str, int]:
    vision, decoder = config.vision_config, config.mask_decoder_config
    return {
        "patch_size": vision.patch_size,
        "encoder_width": vision.hidden_size,
        "encoder_layers": vision.num_hidden_layers,
        "encoder_heads": vision.num_attention_heads,
        "encoder_window": vision.window_size,
        "feature_channels": vision.output_channels,
        "decoder_layers": decoder.num_hidden_layers,
        "decoder_heads": decoder.num_attention_heads,
    }


# Convert grey images to the form that the weights of a checkpoint were trained on.

# Of the red, green and blue channel of the 0 to 255 images SAM was trained on (segment_anything/build_sam.py).
SAM_MEAN = (123.675, 116.28, 103.53)
SAM_STD = (58.395, 57.12, 57.375)


@dataclass(frozen=True, kw_only=True)
class GreyBatch(AttentionBatch):
    """A batch that keeps the grey levels as stored, 0 to 255: uint8 [P, S, S]."""

    grey: Tensor


def check_channels(checkpoint: CheckpointParams, channels: int) -> None:
    """Refuse an encoder that cannot read these images.

    Raises:
        ValueError: if the encoder reads neither one nor three channels, or its normalisation has another number.
    """
    if channels not in (1, 3):
        raise ValueError(
            f"checkpoint {checkpoint.path} must read images of 1 or 3 channels, got {channels}; "
            "choose weights for grey or RGB images"
        )
    if checkpoint.normalisation == "sam" and channels != 3:
        raise ValueError(
            f"attention.model.checkpoint.normalisation must be 'medsam' or 'none' for {checkpoint.path}, which reads 1 channel, "
            "got 'sam', whose statistics are those of RGB images; change it"
        )


def encoder_input(normalisation: str, batch: AttentionBatch, *, channels: int) -> Tensor:
    """Return the encoder's input, [P, channels, S, S]; grey is repeated.

    Args:
        normalisation: ``sam``: (level - mean_c) / std_c of its RGB images; ``medsam``: stretched per image from 0 (its
            darkest pixel) to 1 (its brightest), 0 where there is one level; ``none``: the standardised images, as a SAM
            trained here sees them.
        batch: with grey levels, unless the normalisation is ``none``.
        channels: of the encoder.

    Raises:
        ValueError: if grey levels are needed and missing.
    """
    if normalisation == "none":
        return batch.images.expand(-1, channels, -1, -1)
    if not isinstance(batch, GreyBatch):
        raise ValueError(
            f"the batch must hold grey levels for the normalisation '{normalisation}', got {type(batch).__name__}; "
            "make it with AttentionTask.make_batch"
        )
    levels = batch.grey.to(torch.float32)[:, None]  # [P, 1, S, S]
    if normalisation == "sam":
        mean, std = (
            torch.tensor(values, device=levels.device)[:, None, None]
            for values in (SAM_MEAN, SAM_STD)
        )
        values = (levels - mean) / std  # [P, 3, S, S]
    else:
        low, high = levels.amin((2, 3), keepdim=True), levels.amax((2, 3), keepdim=True)
        values = (levels - low) / (high - low).clamp(min=1e-8)  # [P, 1, S, S]
    return values.expand(-1, channels, -1, -1)
