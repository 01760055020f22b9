"""Wire the molecule task's data: generated or real -> checked -> split, measured -> model input -> task."""

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.boxes import lookup_node
from grpo_pipeline.tasks.molecules.pipelines.nodes import (
    attach_conditions,
    build_molecule_examples,
    build_task,
    check_molecules,
    generate_molecules,
    join_diffusion,
    measure_molecules,
    split_molecules,
)


def create_pipeline() -> Pipeline:
    """Prepare the data; the only input from outside is ``molecules.raw``, by default the generated file.

    ``molecules.generated`` tells ``check_molecules`` what was written, and makes it wait until that is complete.
    The parameters come first: Kedro matches their types to the function's arguments by position.
    """
    return Pipeline(
        [
            Node(
                generate_molecules,
                inputs=["params:molecules.generator", "params:molecules.data"],
                outputs="molecules.generated",
                name="generate_molecules",
                namespace="molecules.data",
            ),
            Node(
                check_molecules,
                inputs=["params:molecules.data", "molecules.raw", "molecules.generated"],
                outputs=[
                    "molecules.checked",
                    "molecules.quarantine",
                    "molecules.vocabulary",
                    "molecules.data_report",
                ],
                name="check_molecules",
                namespace="molecules.data",
            ),
            Node(
                split_molecules,
                inputs=[
                    "params:molecules.split",
                    "params:molecules.data",
                    "molecules.checked",
                    "molecules.quarantine",
                ],
                outputs="molecules.splits",
                name="split_molecules",
                namespace="molecules.data",
            ),
            Node(
                measure_molecules,
                inputs="molecules.checked",
                outputs="molecules.properties",
                name="measure_molecules",
                namespace="molecules.data",
            ),
            Node(
                build_molecule_examples,
                inputs=[
                    "molecules.vocabulary",
                    "molecules.checked",
                    "molecules.properties",
                    "molecules.splits",
                ],
                outputs="molecules.examples",
                name="build_molecule_examples",
                namespace="molecules.data",
            ),
            lookup_node("molecules.raw", name="find_molecules", namespace="molecules.data"),
        ],
        tags=["molecules", "data"],
    )


DIFFUSION = ("noise", "denoiser", "trajectory", "supervised_loss")


def create_preparation() -> Pipeline:
    """Wire ``molecules.examples`` -> ``molecules.data`` and ``molecules.task``."""
    sections = [
        f"params:molecules.{name}"
        for name in ("prompt", "reward", "reward_pool", "sampling", "training")
    ]
    return Pipeline(
        [
            Node(
                attach_conditions,
                ["params:molecules.prompt", "molecules.examples"],
                "molecules.data",
                name="attach_conditions",
                namespace="molecules.data",
            ),
            Node(
                join_diffusion,
                [f"params:molecules.{name}" for name in DIFFUSION],
                "molecules.diffusion",
                name="join_diffusion",
                namespace="molecules.data",
            ),
            Node(
                build_task,
                [*sections, "molecules.diffusion", "molecules.data"],
                "molecules.task",
                name="build_task",
                namespace="molecules.data",
            ),
        ],
        tags="molecules",
    )
