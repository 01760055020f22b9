"""Nodes of the attention task that run before its arms: the task object, a frozen encoder's features, the data."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.pipelines.experiments.trials.setup import TaskSetup
from grpo_pipeline.tasks.attention import build
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.build import FeatureChunk, FeatureSet
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.data.params import AugmentationParams, DataParams
from grpo_pipeline.tasks.attention.params import ModelParams, RewardParams, SupervisedParams
from grpo_pipeline.tasks.attention.task import AttentionTask


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
    yield from build.stream_features(task, task.build_policy(seed), examples, cached)


def join_features(examples: Examples, encoded: FeatureSet) -> AttentionData:
    """Hand examples and features to the arms together."""
    return build.join_features(examples, encoded)


def without_features(examples: Examples) -> AttentionData:
    """Return the data of a stage that trains the encoder: examples alone."""
    return AttentionData(examples, None)


def create_pipeline(stages: tuple[str, ...] = ()) -> Pipeline:
    """Wire ``attention.examples`` -> ``attention.task`` and ``attention.data``.

    With stages before the arms it is ``attention.untrained_task``, and ``attention.untrained_data`` for them; a frozen encoder
    is asked for its features when they are over.
    """
    # A namespace is not interrupted by the nodes of another one.
    after = f"attention.{stages[-1]}" if stages else "attention.data"
    parameters = [
        f"params:attention.{name}"
        for name in ("model", "reward", "supervised_loss", "training", "data")
    ]
    return Pipeline(
        [
            Node(
                build_task,
                [*parameters, "attention.examples", "params:attention.augmentation"],
                "attention.untrained_task" if stages else "attention.task",
                name="build_task",
                namespace="attention.data",
            ),
            Node(
                encode_examples,
                ["params:seed", "attention.task", "attention.examples", "attention.features_cache"],
                "attention.features",
                name="encode_examples",
                namespace=after,
            ),
            *(
                [
                    Node(
                        without_features,
                        "attention.examples",
                        "attention.untrained_data",
                        name="without_features",
                        namespace="attention.data",
                    )
                ]
                if stages
                else []
            ),
            Node(
                join_features,
                ["attention.examples", "attention.features"],
                "attention.data",
                name="join_features",
                namespace=after,
            ),
        ],
        tags="attention",
    )


# Facts that a trial hands to the next one: the features of a frozen encoder.


def gather_features(parts: Iterable[FeatureSet | FeatureChunk]) -> FeatureSet:
    """Return the features as one array in memory."""
    found = list(parts)
    values = [part.values for part in found if part.values is not None]
    if isinstance(found[0], FeatureSet):
        return found[0]
    return FeatureSet(key=found[0].key, values=np.concatenate(values))


def adapt_setup(setup: TaskSetup) -> TaskSetup:
    """Return the setup that computes features once for all trials with the same encoder."""
    return replace(
        setup,
        without_features=without_features,
        memory={**setup.memory, "attention.features_cache": FeatureSet(key="", values=None)},
        carry={**setup.carry, "attention.features_cache": "attention.features"},
        gather={"attention.features": gather_features},
    )
