"""Wiring of the attention task's data: generated or real images -> checked -> split -> model input -> task and data."""

from dataclasses import replace

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.boxes import lookup_node
from grpo_pipeline.pipelines.experiments.trials.preparation import TaskPreparation
from grpo_pipeline.tasks.attention.frozen_features import FeatureSet
from grpo_pipeline.tasks.attention.pipelines.nodes import (
    build_examples,
    build_task,
    check_manifest,
    encode_examples,
    gather_features,
    generate_phantom,
    join_features,
    split_cores,
    without_features,
)


def create_pipeline() -> Pipeline:
    """Prepare the data; ``attention.raw`` is the only input from outside, by default the folder that the phantom is written to.

    ``attention.generated`` tells ``check_manifest`` what was written, and makes it wait until that is complete.
    The parameters come first: Kedro matches their types to the function's arguments by position.
    """
    return Pipeline(
        [
            Node(
                generate_phantom,
                inputs=["params:attention.phantom", "params:attention.data"],
                outputs="attention.generated",
                name="generate_phantom",
                namespace="attention.data",
            ),
            Node(
                check_manifest,
                inputs=["params:attention.data", "attention.raw", "attention.generated"],
                outputs=["attention.checked", "attention.quarantine", "attention.data_report"],
                name="check_manifest",
                namespace="attention.data",
            ),
            Node(
                split_cores,
                inputs=[
                    "params:attention.split",
                    "params:attention.data",
                    "attention.raw",
                    "attention.checked",
                    "attention.quarantine",
                ],
                outputs="attention.splits",
                name="split_cores",
                namespace="attention.data",
            ),
            Node(
                build_examples,
                inputs=[
                    "params:attention.data",
                    "attention.raw",
                    "attention.checked",
                    "attention.splits",
                ],
                outputs=["attention.examples", "attention.imputation"],
                name="build_examples",
                namespace="attention.data",
            ),
            lookup_node("attention.raw", name="find_images", namespace="attention.data"),
            lookup_node(
                "attention.features_cache", name="find_features", namespace="attention.data"
            ),
        ],
        tags=["attention", "data"],
    )


def create_preparation() -> Pipeline:
    """Wire ``attention.examples`` -> ``attention.task`` and ``attention.data``."""
    parameters = [
        f"params:attention.{name}"
        for name in ("model", "reward", "supervised_loss", "training", "data")
    ]
    return Pipeline(
        [
            Node(
                build_task,
                [*parameters, "attention.examples", "params:attention.augmentation"],
                "attention.task",
                name="build_task",
                namespace="attention.data",
            ),
            Node(
                encode_examples,
                ["params:seed", "attention.task", "attention.examples", "attention.features_cache"],
                "attention.features",
                name="encode_examples",
                namespace="attention.data",
            ),
            Node(
                join_features,
                ["attention.examples", "attention.features"],
                "attention.data",
                name="join_features",
                namespace="attention.data",
            ),
        ],
        tags="attention",
    )


def adapt_preparation(preparation: TaskPreparation) -> TaskPreparation:
    """Return the preparation that computes features once for all trials with the same encoder."""
    return replace(
        preparation,
        without_features=without_features,
        memory={**preparation.memory, "attention.features_cache": FeatureSet(key="", values=None)},
        carry={**preparation.carry, "attention.features_cache": "attention.features"},
        gather={"attention.features": gather_features},
    )
