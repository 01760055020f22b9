"""A digest of weights: what a checkpoint of an arm names as its start."""

import hashlib

import torch

from grpo_pipeline.core.weights import ModelWeights


def digest_of_weights(weights: ModelWeights) -> str:
    """Return the SHA-256 of the names and bits of weights."""
    digest = hashlib.sha256()
    for name in sorted(weights.tensors):
        digest.update(f"{name}\0".encode())
        digest.update(weights.tensors[name].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
