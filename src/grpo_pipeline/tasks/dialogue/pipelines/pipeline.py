"""Wire the dialogue task's data: generated or real -> checked -> split -> stories retrieved -> model input -> tokens."""

from dataclasses import replace

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.boxes import lookup_node
from grpo_pipeline.pipelines.experiments.trials.preparation import TaskPreparation
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.language_model.token_table import stack_rows
from grpo_pipeline.tasks.dialogue.pipelines.nodes import (
    build_dialogue_examples,
    build_task,
    check_dialogues,
    generate_dialogues,
    index_stories,
    split_personas,
    tokenise_examples,
)


def create_pipeline() -> Pipeline:
    """Prepare the data; the only input from outside is ``dialogue.raw``, by default the generated folder.

    ``dialogue.generated`` tells ``check_dialogues`` what was written, and makes it wait until that is complete.
    The parameters come first: Kedro matches their types to the function's arguments by position.
    """
    return Pipeline(
        [
            Node(
                generate_dialogues,
                inputs=["params:dialogue.personas", "params:dialogue.data"],
                outputs="dialogue.generated",
                name="generate_dialogues",
                namespace="dialogue.data",
            ),
            Node(
                check_dialogues,
                inputs=["params:dialogue.data", "dialogue.raw", "dialogue.generated"],
                outputs=[
                    "dialogue.checked",
                    "dialogue.stories",
                    "dialogue.quarantine",
                    "dialogue.data_report",
                ],
                name="check_dialogues",
                namespace="dialogue.data",
            ),
            Node(
                split_personas,
                inputs=[
                    "params:dialogue.split",
                    "params:dialogue.data",
                    "dialogue.checked",
                    "dialogue.quarantine",
                ],
                outputs="dialogue.splits",
                name="split_personas",
                namespace="dialogue.data",
            ),
            Node(
                index_stories,
                inputs=["params:dialogue.retrieval", "dialogue.stories"],
                outputs="dialogue.index",
                name="index_stories",
                namespace="dialogue.data",
            ),
            Node(
                build_dialogue_examples,
                inputs=[
                    "params:dialogue.retrieval",
                    "dialogue.index",
                    "dialogue.checked",
                    "dialogue.stories",
                    "dialogue.splits",
                ],
                outputs=["dialogue.examples", "dialogue.retrieval_report"],
                name="build_dialogue_examples",
                namespace="dialogue.data",
            ),
            lookup_node("dialogue.raw", name="find_dialogues", namespace="dialogue.data"),
        ],
        tags=["dialogue", "data"],
    )


SECTIONS = (
    *("language_model", "prompt", "replies", "reward", "reward_pool"),
    *("supervised_loss", "training", "data"),
)


def create_preparation() -> Pipeline:
    """Wire ``dialogue.examples`` -> ``dialogue.task`` and ``dialogue.data``."""
    return Pipeline(
        [
            Node(
                build_task,
                [*(f"params:dialogue.{name}" for name in SECTIONS), "dialogue.examples"],
                "dialogue.task",
                name="build_task",
                namespace="dialogue.data",
            ),
            Node(
                tokenise_examples,
                ["dialogue.task", "dialogue.examples"],
                ["dialogue.data", "dialogue.token_report"],
                name="tokenise_examples",
                namespace="dialogue.data",
            ),
        ],
        tags="dialogue",
    )


def adapt_preparation(preparation: TaskPreparation) -> TaskPreparation:
    """Change the preparation so that digests need no tokens."""
    nothing = stack_rows([])
    return replace(
        preparation, without_features=lambda examples: DialogueData(examples, nothing, nothing)
    )
