"""Load SAM or MedSAM weights, at their own image size or at another one (docs/attention/checkpoints.md).

The architecture is that of the file, whatever ``attention.model`` says of its sizes; ``adopt_checkpoint`` writes the file's
sizes into the parameters before anything is built, so that grid, policy and decoders fit.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import SamConfig, SamModel

from grpo_pipeline.tasks.attention.model.encoder.checkpoint_files import (
    digest_of,
    read_config,
    read_weights,
)
from grpo_pipeline.tasks.attention.model.encoder.encoder_input import check_channels
from grpo_pipeline.tasks.attention.model.encoder.params import SamEncoder
from grpo_pipeline.tasks.attention.model.encoder.position_embeddings import fit_positions
from grpo_pipeline.tasks.attention.model.encoder.weight_names import listed
from grpo_pipeline.tasks.attention.model.params import MaskDecoderParams, ModelParams


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
    return params.model_copy(
        update={
            "patch_size": sizes["patch_size"],
            "mask_decoder": MaskDecoderParams(**sizes["mask_decoder"]),
        }
    )


def load_net(params: ModelParams, image_size: int) -> SamModel:
    """Build the checkpoint's SAM for square images of ``image_size`` pixels and fill in its weights; draws no random number.

    The Fourier basis of the positions is frozen: in segment-anything it is no parameter.

    Args:
        params: of the model, as ``adopt_checkpoint`` returns them.
        image_size: side S of the image in pixels, a multiple of the patch.

    Raises:
        FileNotFoundError: if the checkpoint is missing.
        ValueError: if it cannot be read, or its weights do not fit its architecture.
    """
    if params.checkpoint is None:
        raise ValueError(
            "attention.model.encoder.kind must be sam to load weights, got new; give path, format and normalisation, too"
        )
    checkpoint = params.checkpoint
    values = read_config(checkpoint).to_dict()
    values["vision_config"]["image_size"] = image_size
    grid = image_size // values["vision_config"]["patch_size"]
    values["prompt_encoder_config"] |= {"image_size": image_size, "image_embedding_size": grid}
    config = SamConfig.from_dict(values)
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


def fingerprint_of(checkpoint: SamEncoder) -> dict[str, str]:
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


def _sizes(config: Any) -> dict[str, Any]:
    vision, decoder = config.vision_config, config.mask_decoder_config
    return {
        "patch_size": vision.patch_size,
        "mask_decoder": {
            "channels": vision.output_channels,
            "layers": decoder.num_hidden_layers,
            "heads": decoder.num_attention_heads,
        },
    }
