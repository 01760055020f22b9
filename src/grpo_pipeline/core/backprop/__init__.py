"""A ``BackpropModule`` for training loops of your own; docs/backprop.md shows the usual loops."""

from grpo_pipeline.core.backprop.module import (
    BackpropConfig,
    BackpropModule,
    compute_entropy,
    compute_returns,
)
from grpo_pipeline.core.backprop.response_logprobs import response_logprobs

__all__ = [
    "BackpropConfig",
    "BackpropModule",
    "compute_entropy",
    "compute_returns",
    "response_logprobs",
]
