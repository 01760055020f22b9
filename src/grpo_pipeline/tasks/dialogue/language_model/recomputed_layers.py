"""Compute the layers of a network again in the backward pass, so that each keeps its input alone: a forward pass for the memory.

Source: Chen et al., arXiv 1604.06174. How this differs from the library's own switch: that drops the cache of keys and values, in
which a prompt is read once for all of its replies. Here a layer finds the cache again as it was.
"""

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer


def again(compute: Callable[..., Any], *args: Any, is_on: bool) -> Any:
    """Return ``compute(*args)``; where it and gradients are on, what it would keep is computed again in the backward pass."""
    if not (is_on and torch.is_grad_enabled()):
        return compute(*args)
    return checkpoint(compute, *args, use_reentrant=False, preserve_rng_state=False)


def run(network: Any, *, is_on: bool, **inputs: Any) -> Any:
    """Run a network of transformers, each of whose layers computes itself again where it is on and gradients are."""
    layers: list[Any] = []
    if is_on and torch.is_grad_enabled():
        layers = [one for one in network.modules() if isinstance(one, GradientCheckpointingLayer)]
    for layer in layers:
        layer.forward = partial(_again, layer.forward)
    try:
        return network(**inputs)
    finally:
        for layer in layers:
            del layer.forward


def _again(forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a layer, and once more in the backward pass with its caches as they are now."""
    caches = [value for value in (*args, *options.values()) if isinstance(value, DynamicCache)]
    held = [(cache, [copy(layer) for layer in cache.layers]) for cache in caches]

    def compute(*given: Any) -> Any:
        for cache, layers in held:
            cache.layers[:] = [copy(layer) for layer in layers]
        return forward(*given, **options)

    return again(compute, *args, is_on=True)
