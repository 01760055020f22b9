"""The attention task as the engine sees it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from grpo_pipeline.pipelines.compare.kit import TaskKit, resplit_table
from grpo_pipeline.pipelines.training.attention import create_pipeline as prepare_attention
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.examples import Examples
from grpo_pipeline.tasks.attention.features import FeatureChunk, FeatureSet


def resplit_examples(examples: Examples, split: Mapping[str, str]) -> Examples:
    """Return the examples with another split; a core that the mapping does not name is in none."""
    return replace(examples, table=resplit_table(examples.table, split, key="core_id", noun="core"))


def gather_features(parts: Iterable[FeatureSet | FeatureChunk]) -> FeatureSet:
    """Return the features as one array in memory."""
    found = list(parts)
    values = [part.values for part in found if part.values is not None]
    if isinstance(found[0], FeatureSet):
        return found[0]
    return FeatureSet(key=found[0].key, values=np.concatenate(values))


def attention_kit() -> TaskKit:
    """Return the kit of the attention task."""
    return TaskKit(
        task="attention",
        prepare=prepare_attention(),
        resplit=resplit_examples,
        without_features=lambda examples: AttentionData(examples, None),
        memory={"attention.features_cache": FeatureSet(key="", values=None)},
        carry={"attention.features_cache": "attention.features"},
        gather={"attention.features": gather_features},
    )
