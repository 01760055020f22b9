"""Keep the weights of the class decoder small."""

import torch
from torch import Tensor, nn


def penalty(decoder: nn.Module, heads: int = 1) -> Tensor:
    """Return half the sum of the squared weights, without biases, per head: ridge for a linear decoder."""
    weights = [p.square().sum() for p in decoder.parameters() if p.requires_grad and p.ndim > 1]
    return torch.stack(weights).sum() / (2 * heads)
