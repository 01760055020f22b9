"""Nodes of the dialogue task that run before its arms: the task object, the tokens, and the initial policy of all arms."""

from typing import Any

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.weights import ModelWeights
from grpo_pipeline.tasks.dialogue import build
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.examples import DialogueExamples
from grpo_pipeline.tasks.dialogue.reader_params import ReaderSection, ReplyParams
from grpo_pipeline.tasks.dialogue.reward_params import RewardParams
from grpo_pipeline.tasks.dialogue.task import DialogueTask
from grpo_pipeline.tasks.dialogue.task_params import PromptParams, SupervisedParams

SECTIONS = ("reader", "prompt", "replies", "rewards", "supervised_loss", "training")
STAGE = "warm_start"


def build_task(
    reader: ReaderSection,
    prompt: PromptParams,
    replies: ReplyParams,
    rewards: RewardParams,
    supervised_loss: SupervisedParams,
    training: TrainingParams,
) -> DialogueTask:
    """Put the task together, with fresh weights or those of the reader's folder; refuses what does not go together."""
    return build.build_task(reader.params, prompt, replies, rewards, supervised_loss, execution=training)


def check_arms(
    warm_start: AlgorithmParams,
    supervised: AlgorithmParams,
    reinforce: AlgorithmParams,
    grpo: AlgorithmParams,
    task: DialogueTask,
    examples: DialogueExamples,
) -> DialogueTask:
    """Hand the task on once every arm asks for what it has and the user's rewards answer: before the first stage is trained."""
    build.check_arms(task, (warm_start, supervised, reinforce, grpo))
    build.try_own_rewards(task, examples)
    return task


def tokenise_examples(task: DialogueTask, examples: DialogueExamples) -> tuple[DialogueData, dict[str, Any]]:
    """Turn the examples into tokens once; report what was cut."""
    return build.tokenise(task, examples)


def start_arms(task: DialogueTask, model: ModelWeights) -> DialogueTask:
    """Return the task whose policies begin with the warm start's weights."""
    return build.start_from(task, model)


def create_pipeline() -> Pipeline:
    """Wire ``dialogue.examples`` -> ``dialogue.task`` and ``dialogue.data``; ``warm_start`` is trained between them."""
    algorithms = [f"params:dialogue.{arm}.algorithm" for arm in (STAGE, "supervised", "reinforce", "grpo")]
    return Pipeline(
        [
            Node(build_task, [f"params:dialogue.{name}" for name in SECTIONS], "dialogue.untrained_task", name="build_task"),
            Node(
                check_arms,
                [*algorithms, "dialogue.untrained_task", "dialogue.examples"],
                f"dialogue.{STAGE}.task",
                name="check_arms",
            ),
            Node(
                tokenise_examples,
                ["dialogue.untrained_task", "dialogue.examples"],
                ["dialogue.data", "dialogue.token_report"],
                name="tokenise_examples",
            ),
            Node(
                start_arms,
                [f"dialogue.{STAGE}.task", f"dialogue.{STAGE}.model"],
                "dialogue.task",
                name="start_arms",
                # It stands between two stages: without it Kedro warns that they are torn apart.
                namespace="dialogue",
            ),
        ],
        tags="dialogue",
    )
