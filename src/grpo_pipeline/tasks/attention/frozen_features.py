"""Compute the features of a frozen encoder once for the whole data set, known by what they were computed from."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from grpo_pipeline.runs.progress import track
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.task import AttentionTask

BATCH_SIZE = 64


@dataclass(frozen=True)
class FeatureSet:
    """Features [n, C, h, w] of the examples, or None with a trainable encoder; ``key`` names weights and data."""

    key: str
    values: np.ndarray | None


@dataclass(frozen=True)
class FeatureChunk:
    """Features [m, C, h, w] of consecutive examples, the first being row ``start`` of ``total``."""

    key: str
    start: int
    total: int
    values: np.ndarray

    @property
    def is_last(self) -> bool:
        """Whether these are the last ones."""
        return self.start + len(self.values) == self.total


def encode_examples(
    task: AttentionTask, policy: AttentionModel, examples: Examples, cached: FeatureSet
) -> FeatureSet:
    """Return what ``stream_features`` yields, in memory."""
    parts = list(stream_features(task, policy, examples, cached))
    if isinstance(parts[0], FeatureSet):
        return parts[0]
    return FeatureSet(
        key=parts[0].key,
        values=np.concatenate([part.values for part in parts if part.values is not None]),
    )


def stream_features(
    task: AttentionTask, policy: AttentionModel, examples: Examples, cached: FeatureSet
) -> Iterator[FeatureSet | FeatureChunk]:
    """Yield the cached features where weights and data are the same, else encode every example once, chunk by chunk.

    Args:
        task: the task; only with a frozen encoder is there something to keep.
        policy: holds the frozen encoder.
        examples: the data set.
        cached: of an earlier run; any key.
    """
    if not task.model.is_frozen:
        yield FeatureSet(key="", values=None)
        return
    key, n = _key(policy, examples), len(examples.table)
    if cached.key == key:
        yield cached
        return
    data = AttentionData(examples, None)
    for start in track(range(0, n, BATCH_SIZE), "encode images"):
        rows = np.arange(start, min(start + BATCH_SIZE, n))
        with torch.no_grad():
            values = policy.encode(task.make_batch(data, rows)).cpu().numpy()  # [m, C, h, w]
        yield FeatureChunk(key, start, n, values)


def _key(policy: AttentionModel, examples: Examples) -> str:
    digest = hashlib.sha256(examples.digest.encode())
    if policy.checkpoint is not None:
        digest.update(policy.checkpoint.normalisation.encode())
    for name, tensor in sorted(policy.sam.net.vision_encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
