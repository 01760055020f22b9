"""Prepare how the image encoder is executed: memory format and checkpointing; no weight is added or renamed."""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_pipeline.core.params import ExecutionParams
from grpo_pipeline.tasks.attention.model.model import AttentionModel


def prepare_model(model: AttentionModel, execution: ExecutionParams) -> AttentionModel:
    """Set up a model, already on its device, as the parameters say; returns the same model.

    Args:
        model: changed in place.
        execution: ``memory_format`` and ``activation_checkpointing``.
    """
    if execution.memory_format == "channels_last":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for encoder in encoders_of(model):
        if execution.activation_checkpointing == "encoder":
            checkpoint_layers(encoder)
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
