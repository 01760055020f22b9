"""Wiring of the attention task's data: generated or real images -> checked -> split -> model input."""

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.data.attention.nodes import (
    build_examples,
    check_manifest,
    generate_phantom,
    split_cores,
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
                outputs=["attention.phantom", "attention.generated"],
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
                inputs=["params:attention.split", "params:attention.data", "attention.checked"],
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
        ],
        tags=["attention", "data"],
    )
