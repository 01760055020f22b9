"""Facts that a trial of the attention task hands to the next one: the features of a frozen encoder."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from grpo_pipeline.pipelines.experiments.trials.kit import TaskKit
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.build import FeatureChunk, FeatureSet


def gather_features(parts: Iterable[FeatureSet | FeatureChunk]) -> FeatureSet:
    """Return the features as one array in memory."""
    found = list(parts)
    values = [part.values for part in found if part.values is not None]
    if isinstance(found[0], FeatureSet):
        return found[0]
    return FeatureSet(key=found[0].key, values=np.concatenate(values))


def adapt_kit(kit: TaskKit) -> TaskKit:
    """Return the kit that computes features once for all cells with the same encoder."""
    return replace(
        kit,
        without_features=lambda examples: AttentionData(examples, None),
        memory={"attention.features_cache": FeatureSet(key="", values=None)},
        carry={"attention.features_cache": "attention.features"},
        gather={"attention.features": gather_features},
    )
