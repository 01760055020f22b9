"""Choose which weights of SAM's vision encoder are trained: all, none, or a small addition to a frozen encoder."""

from typing import Any

from grpo_pipeline.tasks.attention.model.encoder.adapters import Adapted
from grpo_pipeline.tasks.attention.model.encoder.low_rank_updates import add_lora
from grpo_pipeline.tasks.attention.model_params import ModelParams


def tune_encoder(encoder: Any, params: ModelParams) -> None:
    """Freeze an encoder as ``params.encoder`` says, in place, and add what is to be trained instead.

    Args:
        encoder: a ``SamVisionEncoder``, with the weights it starts from.
        params: of the model; they hold an ``encoder_tuning`` where one is needed.
    """
    tuning = params.encoder_tuning
    if params.encoder == "frozen":
        encoder.requires_grad_(False)
    elif params.encoder == "adapter" and tuning is not None:
        # One behind attention and MLP of each block; 2 * layers * (2 * width * rank + rank + width) trainable numbers. The
        # outputs are those of the plain encoder until an update.
        encoder.requires_grad_(False)
        width, rank = encoder.config.hidden_size, tuning.rank
        for layer in encoder.layers:
            layer.attn = Adapted(layer.attn, width, rank)
            layer.mlp = Adapted(layer.mlp, width, rank)
    elif (
        params.encoder == "lora"
        and tuning is not None
        and tuning.alpha is not None
        and tuning.targets is not None
    ):
        add_lora(encoder, rank=tuning.rank, alpha=tuning.alpha, targets=tuning.targets)
