"""Choose which weights of SAM's vision encoder are trained: all, none, or a small addition to a frozen encoder."""

from typing import Any

from grpo_pipeline.tasks.attention.model.encoder.adapters import Adapted
from grpo_pipeline.tasks.attention.model.encoder.params import (
    AdapterTuning,
    FrozenEncoder,
    Tuning,
)


def tune_encoder(encoder: Any, tuning: Tuning | None) -> None:
    """Freeze an encoder, in place, and add what is to be trained instead.

    Args:
        encoder: a ``SamVisionEncoder``, with the weights it starts from.
        tuning: what is trained; None leaves all weights as they are, to be trained.
    """
    if isinstance(tuning, FrozenEncoder):
        encoder.requires_grad_(False)
    elif isinstance(tuning, AdapterTuning):
        # One behind attention and MLP of each block; 2 * layers * (2 * width * rank + rank + width) trainable numbers. The
        # outputs are those of the plain encoder until an update.
        encoder.requires_grad_(False)
        width, rank = encoder.config.hidden_size, tuning.rank
        for layer in encoder.layers:
            layer.attn = Adapted(layer.attn, width, rank)
            layer.mlp = Adapted(layer.mlp, width, rank)
