"""Features of a frozen encoder: computed once for the whole data set, and known by what they were computed from."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.examples import Examples
from grpo_pipeline.tasks.attention.model import AttentionModel
from grpo_pipeline.tasks.attention.task import AttentionTask

BATCH_SIZE = 64


@dataclass(frozen=True)
class FeatureSet:
    """Features float32 [n, C, h, w] of the examples, or None with a trainable encoder; ``key`` names weights and data."""

    key: str
    values: np.ndarray | None


def encode_examples(task: AttentionTask, policy: AttentionModel, examples: Examples, cached: FeatureSet) -> FeatureSet:
    """Return the cached features where weights and data are the same, else encode every example once.

    Args:
        task: the task; with ``encoder: train`` there is nothing to keep.
        policy: holds the frozen encoder.
        examples: the data set.
        cached: of an earlier run; any key.
    """
    if task.model.encoder == "train":
        return FeatureSet(key="", values=None)
    key = _key(policy, examples)
    if cached.key == key:
        return cached
    data, n = AttentionData(examples, None), len(examples.table)
    with torch.no_grad():
        batches = (task.make_batch(data, np.arange(i, min(i + BATCH_SIZE, n))) for i in range(0, n, BATCH_SIZE))
        values = [policy.encode(batch).cpu().numpy() for batch in batches]
    return FeatureSet(key=key, values=np.concatenate(values))


def _key(policy: AttentionModel, examples: Examples) -> str:
    digest = hashlib.sha256(examples.digest.encode())
    if policy.checkpoint is not None:
        digest.update(policy.checkpoint.normalisation.encode())
    for name, tensor in sorted(policy.sam.net.vision_encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
