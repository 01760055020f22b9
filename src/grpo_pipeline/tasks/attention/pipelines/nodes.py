"""Nodes of the attention task's data, and of what runs before its arms: task, a frozen encoder's features, data.

The checks and the arithmetic are in ``tasks.attention``.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.runs.progress import track
from grpo_pipeline.tasks.attention import build, frozen_features
from grpo_pipeline.tasks.attention.augmentation_params import AugmentationParams
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.clinical import Description
from grpo_pipeline.tasks.attention.data import example_building, manifest
from grpo_pipeline.tasks.attention.data import splits as splitting
from grpo_pipeline.tasks.attention.data.checked_table import parse_checked
from grpo_pipeline.tasks.attention.data.examples import ExampleChunk, Examples
from grpo_pipeline.tasks.attention.data.image_folder import ImageChunk, ImageFolder
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.phantom.chunks import empty_chunk, phantom_chunks
from grpo_pipeline.tasks.attention.data.phantom.generate import count_cores, generate_cores
from grpo_pipeline.tasks.attention.data.phantom.params import PhantomParams
from grpo_pipeline.tasks.attention.data.quarantine import describe_bad, refuse_rows
from grpo_pipeline.tasks.attention.data.split_params import SplitParams
from grpo_pipeline.tasks.attention.frozen_features import FeatureChunk, FeatureSet
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.rewards.params import RewardParams
from grpo_pipeline.tasks.attention.task import AttentionTask
from grpo_pipeline.tasks.refusals import after_refusals


def generate_phantom(
    phantom: PhantomParams, data: DataParams
) -> Iterator[tuple[ImageChunk, dict[str, object]]]:
    """Yield the generated cores chunk by chunk, each with a summary of what is written so far.

    With another ``source`` one empty chunk is yielded, which writes nothing.
    """
    if data.source != "phantom":
        yield empty_chunk(), {"source": data.source, "cores": 0, "complete": True}
        return
    total, done = count_cores(phantom), 0
    cores = track(generate_cores(phantom), "generate phantom", total=total)
    for chunk in phantom_chunks(cores):
        done += len(chunk.rows)
        yield (
            chunk,
            {
                "source": "phantom",
                "cores": done,
                "complete": chunk.is_last,
                "params": phantom.model_dump(mode="json"),
            },
        )


def check_manifest(
    data: DataParams, raw: ImageFolder, generated: dict[str, object]
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, object]]:
    """Check every manifest row and its files; see ``tasks.attention.data.manifest.sort_manifest``."""
    return manifest.sort_manifest(raw, generated, data)


def split_cores(
    split: SplitParams,
    data: DataParams,
    raw: ImageFolder,
    checked: pd.DataFrame,
    quarantine: pd.DataFrame,
) -> splitting.Splits:
    """Stop for bad rows, now that they are listed, or divide the cores by group.

    See ``tasks.attention.data.quarantine.refuse_rows`` and ``splits.split_cores``.
    """
    refuse_rows(raw, checked, quarantine, data)
    n_left = len(raw.manifest) - len(quarantine)
    with after_refusals(describe_bad(raw, quarantine, n_left=n_left)):
        return splitting.split_cores(parse_checked(checked, data), split, classes=data.label.scheme)


def build_examples(
    data: DataParams, raw: ImageFolder, checked: pd.DataFrame, splits: splitting.Splits
) -> Iterator[tuple[ExampleChunk, Description]]:
    """Yield the model input chunk by chunk; see ``tasks.attention.data.example_building.stream_examples``."""
    yield from example_building.stream_examples(raw, checked, splits, data)


def build_task(
    model: ModelParams,
    rewards: RewardParams,
    supervised_loss: SupervisedParams,
    training: TrainingParams,
    data: DataParams,
    examples: Examples,
    augmentation: AugmentationParams | None,
) -> AttentionTask:
    """Put the task together; refuses cores with fewer cells than points, and what does not go together."""
    task = build.build_task(model, rewards, supervised_loss, examples, training, augmentation)
    return build.keep_preprocessing(task, data)


def encode_examples(
    seed: int, task: AttentionTask, examples: Examples, cached: FeatureSet
) -> Iterator[FeatureSet | FeatureChunk]:
    """Encode the data set once, chunk by chunk, when the encoder is frozen; found again by the key of weights and data."""
    yield from frozen_features.stream_features(task, task.build_policy(seed), examples, cached)


def join_features(examples: Examples, encoded: FeatureSet) -> AttentionData:
    """Hand examples and features to the arms together."""
    return build.join_features(examples, encoded)


def without_features(examples: Examples) -> AttentionData:
    """Return the data without features: examples alone."""
    return AttentionData(examples, None)


def gather_features(parts: Iterable[FeatureSet | FeatureChunk]) -> FeatureSet:
    """Return the features as one array in memory."""
    found = list(parts)
    values = [part.values for part in found if part.values is not None]
    if isinstance(found[0], FeatureSet):
        return found[0]
    return FeatureSet(key=found[0].key, values=np.concatenate(values))
